/**
 * The ports that the kernel takes for who asks for any: a host has as many as
 * net.ipv4.ip_local_port_range says, and its connections use them up.
 */
#ifndef HVI_BASE_PORTS_H
#define HVI_BASE_PORTS_H

enum { HVI_PORTS_TEXT = 256 };

/**
 * Was it for want of a port?
 *
 * @param error  errno of connect(), or of bind() to any port
 * @param out    the words, with this host's name and what to do; one line
 *
 * Returns  out when this host has no port left; else NULL; errno stays.
 * Blocks   never.
 */
const char *hvi_ports_gone(int error, char out[HVI_PORTS_TEXT]);

#endif
