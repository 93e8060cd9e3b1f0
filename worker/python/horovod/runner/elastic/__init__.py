"""Elastic jobs: what programs and launchers share."""
