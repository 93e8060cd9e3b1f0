/**
 * relay - a link that is slow and loses packets: copies Ethernet frames between two
 * interfaces, for kernels without netem.
 *
 *     relay A B DELAY_MS JITTER_MS LOSS_PERCENT
 *
 * What enters at A waits DELAY +/- JITTER, in order; what enters at B goes at once; LOSS
 * of both is dropped. Says "ready" on stdout. Ends when an interface is gone.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { QUEUE = 1 << 14, FRAME_BYTES = 70000 };

static struct {
    uint64_t due_ns;
    size_t size_bytes;
    uint8_t *data;
} queue[QUEUE];
static unsigned head, tail;

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int open_port(const char *name)
{
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL));
    struct sockaddr_ll sa = {.sll_family = AF_PACKET,
                             .sll_protocol = htons(ETH_P_ALL),
                             .sll_ifindex = (int)if_nametoindex(name)};
    int on = 1, size = 8 << 20;

    /* with this header, packets whose checksum is left to the device pass unharmed */
    if (fd < 0 || sa.sll_ifindex == 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) != 0 ||
        bind(fd, (struct sockaddr *)&sa, sizeof sa) != 0) {
        perror(name);
        exit(1);
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size);
    return fd;
}

/* 0: nothing for us; -1: nothing more. */
static ssize_t take(int fd, uint8_t *frame)
{
    struct sockaddr_ll from = {0};
    socklen_t size = sizeof from;
    ssize_t n =
        recvfrom(fd, frame, FRAME_BYTES, MSG_DONTWAIT, (struct sockaddr *)&from, &size);

    return n > 0 && from.sll_pkttype == PACKET_OUTGOING ? 0 : n;
}

static void put(int fd, const void *frame, size_t size_bytes)
{
    if (send(fd, frame, size_bytes, 0) < 0 && (errno == ENETDOWN || errno == ENXIO))
        exit(0);
}

static void hold(const uint8_t *frame, size_t size_bytes, double delay_ns)
{
    static uint64_t last;
    uint64_t due = now_ns() + (uint64_t)(delay_ns > 0 ? delay_ns : 0);

    if (tail - head == QUEUE)
        return;
    queue[tail % QUEUE].data = malloc(size_bytes);
    if (queue[tail % QUEUE].data == NULL)
        return;
    memcpy(queue[tail % QUEUE].data, frame, size_bytes);
    queue[tail % QUEUE].size_bytes = size_bytes;
    last = due > last ? due : last;
    queue[tail++ % QUEUE].due_ns = last;
}

int main(int argc, char **argv)
{
    static uint8_t frame[FRAME_BYTES];

    if (argc != 6)
        return 2;
    int a = open_port(argv[1]), b = open_port(argv[2]);
    double delay = atof(argv[3]) * 1e6, jitter = atof(argv[4]) * 1e6;
    double loss = atof(argv[5]) / 100;

    srand48(1);
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct pollfd p[2] = {{.fd = a, .events = POLLIN}, {.fd = b, .events = POLLIN}};
        struct timespec wait = {0, 0};
        uint64_t now = now_ns();
        ssize_t n;

        if (head != tail && queue[head % QUEUE].due_ns > now) {
            uint64_t left = queue[head % QUEUE].due_ns - now;

            wait.tv_sec = (time_t)(left / 1000000000u);
            wait.tv_nsec = (long)(left % 1000000000u);
        }
        if (ppoll(p, 2, head == tail ? NULL : &wait, NULL) < 0 && errno != EINTR)
            return 1;
        for (int i = 0; i < 64 && (n = take(a, frame)) >= 0; i++)
            if (n > 0 && drand48() >= loss)
                hold(frame, (size_t)n, delay + (2 * drand48() - 1) * jitter);
        for (int i = 0; i < 64 && (n = take(b, frame)) >= 0; i++)
            if (n > 0 && drand48() >= loss)
                put(a, frame, (size_t)n);
        for (now = now_ns(); head != tail && queue[head % QUEUE].due_ns <= now;
             head++) {
            put(b, queue[head % QUEUE].data, queue[head % QUEUE].size_bytes);
            free(queue[head % QUEUE].data);
        }
    }
}
