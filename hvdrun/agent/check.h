/** `hvd-agent --check`: what `hvdrun doctor` wants to know about a host. */
#ifndef HVI_AGENT_CHECK_H
#define HVI_AGENT_CHECK_H

/**
 * Reads lines from stdin up to an empty one: "port N", "nonce TEXT", "address A" (of
 * hvdrun's host, several), "ssh" (also try where the ssh came from), "wdir PATH",
 * "program PATH". Prints lines of facts.h. Returns the exit status.
 */
int hvi_agent_check(void);

#endif
