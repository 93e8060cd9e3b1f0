"""Not there yet: importing this is an ImportError that says so."""

from horovod._absent import refuse

refuse("ray")
