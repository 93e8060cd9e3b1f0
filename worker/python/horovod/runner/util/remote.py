"""Command lines of ssh."""

import shlex

SSH_COMMAND_PREFIX = "ssh -o PasswordAuthentication=no -o StrictHostKeyChecking=no"


def get_ssh_command(local_command, host, port=None, identity_file=None, timeout_s=None):
    """Shell command that runs local_command on host."""
    words = [SSH_COMMAND_PREFIX, host]
    if port:
        words.append("-p %s" % port)
    if identity_file:
        words.append("-i %s" % identity_file)
    if timeout_s:
        words.append("-o ConnectTimeout=%s" % timeout_s)
    return " ".join(words + [shlex.quote(local_command)])


def get_remote_command(local_command, host, port=None, identity_file=None, timeout_s=None):
    """Shell command that runs local_command on host. hvdrun itself does not use it."""
    return get_ssh_command(local_command, host, port, identity_file, timeout_s)
