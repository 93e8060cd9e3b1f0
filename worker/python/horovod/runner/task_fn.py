"""One host of a launch looks for the next one: which interfaces reach it?

python -m horovod.runner.task_fn INDEX NUM_HOSTS DRIVER_ADDRESSES SETTINGS, each as text of codec.
get_common_interfaces() has hvdrun call look_for_neighbour_as_rank() on each host instead, so that
no command line shows the key in the settings.
"""

import os
import sys

from horovod.runner.common.util import codec, host_hash
from horovod.runner.driver.driver_service import HorovodRunDriverClient
from horovod.runner.task.task_service import HorovodRunTaskClient, HorovodRunTaskService


def look_for_neighbour(index, num_hosts, driver_addresses, settings):
    """Tell the driver where the next host is reached; return when this one has been looked for.

    index             of this host: 0 to num_hosts - 1
    driver_addresses  of the HorovodRunDriverService
    settings          key, verbose, nics and start_timeout
    NoValidAddressesFound when no interface reaches the next host under one name at both ends,
    TimeoutException when the others do not come.
    """
    task = HorovodRunTaskService(index, settings.key, settings.nics)
    try:
        driver = HorovodRunDriverClient(driver_addresses, settings.key, settings.verbose)
        driver.register_task(index, task.addresses(), host_hash.host_hash())
        task.wait_for_initial_registration(settings.start_timeout)
        following = (index + 1) % num_hosts
        neighbour = HorovodRunTaskClient(following, driver.all_task_addresses(following),
                                         settings.key, settings.verbose, match_intf=True)
        driver.register_task_to_task_addresses(following, neighbour.addresses())
        neighbour.task_to_task_address_check_completed()
        task.wait_for_task_to_task_address_check_finish_signal(settings.start_timeout)
    finally:
        task.shutdown()


def look_for_neighbour_as_rank(num_hosts, driver_addresses, settings):
    """look_for_neighbour() in a job with one rank on each host."""
    look_for_neighbour(int(os.environ["HOROVOD_RANK"]), num_hosts, driver_addresses, settings)


def main(words):
    """look_for_neighbour() with the words of the command line."""
    if len(words) != 4:
        raise SystemExit("horovod.runner.task_fn: usage: python -m horovod.runner.task_fn INDEX "
                         "NUM_HOSTS DRIVER_ADDRESSES SETTINGS, each of codec.dumps_base64()")
    look_for_neighbour(*(codec.loads_base64(word) for word in words))


if __name__ == "__main__":
    main(sys.argv[1:])
