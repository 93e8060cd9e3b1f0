#include "worker/core/pulse.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "proto/base/netaddr.h"

/* "node1:4000 (10.0.0.1)": the name as it was given, and what it led to. */
static void name(struct hvi_pulse *p, const char *endpoint, int fd)
{
    struct sockaddr_storage ss;
    socklen_t n = sizeof ss;
    char address[HVI_ADDR_MAX];

    if (getpeername(fd, (struct sockaddr *)&ss, &n) == 0 &&
        hvi_netaddr_text((struct sockaddr *)&ss, address) &&
        strstr(endpoint, address) == NULL)
        snprintf(p->where, sizeof p->where, "%.256s (%s)", endpoint, address);
    else
        snprintf(p->where, sizeof p->where, "%.256s", endpoint);
}

void hvi_pulse_init(struct hvi_pulse *p, const char *endpoint, int fd, int lease_s)
{
    memset(p, 0, sizeof *p);
    p->limit_ticks = lease_s * 1000 / HVI_PULSE_TICK_MS;
    p->heard_s = time(NULL);
    if (p->limit_ticks > 0)
        name(p, endpoint, fd);
}

static enum hvi_pulse_is tick(struct hvi_pulse *p)
{
    int third = p->limit_ticks / 3;

    if (atomic_exchange(&p->heard, false)) {
        p->silent_ticks = 0;
        p->heard_s = time(NULL);
        return HVI_PULSE_FINE;
    }
    if (++p->silent_ticks > p->limit_ticks)
        return HVI_PULSE_GONE;
    return third == 0 || p->silent_ticks % third == 0 ? HVI_PULSE_ASK : HVI_PULSE_FINE;
}

enum hvi_pulse_is hvi_pulse_look(struct hvi_pulse *p, int64_t now_ms, int *timeout_ms)
{
    enum hvi_pulse_is is = HVI_PULSE_FINE;

    if (p->limit_ticks == 0)
        return is;
    if (p->tick_at_ms == 0)
        p->tick_at_ms = now_ms + HVI_PULSE_TICK_MS;
    if (now_ms >= p->tick_at_ms) {
        p->tick_at_ms = now_ms + HVI_PULSE_TICK_MS;
        is = tick(p);
    }
    if (*timeout_ms < 0 || *timeout_ms > p->tick_at_ms - now_ms)
        *timeout_ms = (int)(p->tick_at_ms - now_ms);
    return is;
}

enum hvd_status hvi_pulse_gone(const struct hvi_pulse *p, struct hvi_err *err)
{
    time_t since = (time_t)p->heard_s;
    struct tm tm;
    char clock[16] = "?";

    if (localtime_r(&since, &tm) != NULL)
        strftime(clock, sizeof clock, "%H:%M:%S", &tm);
    return hvi_fail(err, HVD_EPEER,
                    "the coordinator at %s has not answered for %d s, since %s; is it "
                    "stopped?",
                    p->where, p->silent_ticks * HVI_PULSE_TICK_MS / 1000, clock);
}
