"""Data sets that other processes prepare: tf.data service for training ranks."""
