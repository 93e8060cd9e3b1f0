#!/bin/bash
# The device code that is checked in: ptxas accepts it for every architecture from sm_75 on that the
# toolkit knows, and it is what nvcc makes of its source.
set -u
exec "$HVD_SRC/scripts/ptx.sh" --check
