"""What a launch was asked for."""


class BaseSettings:
    """Settings that static and elastic launches share.

    num_proc       number of ranks
    verbose        0: quiet, 1: some, 2: much
    key            key of the job's services
    start_timeout  Timeout until all ranks must be there
    nics           names of network interfaces to use
    run_func_mode  a function is run, not a command
    """

    def __init__(self, num_proc=None, verbose=0, ssh_port=None, ssh_identity_file=None,
                 extra_mpi_args=None, tcp_flag=None, binding_args=None, key=None,
                 start_timeout=None, output_filename=None, run_func_mode=None, nics=None,
                 elastic=False, prefix_output_with_timestamp=False):
        self.num_proc = num_proc
        self.verbose = verbose
        self.ssh_port = ssh_port
        self.ssh_identity_file = ssh_identity_file
        self.extra_mpi_args = extra_mpi_args
        self.tcp_flag = tcp_flag
        self.binding_args = binding_args
        self.key = key
        self.start_timeout = start_timeout
        self.output_filename = output_filename
        self.run_func_mode = run_func_mode
        self.nics = nics
        self.elastic = elastic
        self.prefix_output_with_timestamp = prefix_output_with_timestamp


class Settings(BaseSettings):
    """Settings of a static launch.

    hosts  "a:4,b:2"
    """

    def __init__(self, hosts=None, **kwargs):
        super().__init__(**kwargs)
        self.hosts = hosts
