#include "hvdrun/agent/check.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <unistd.h>

#include "hvdrun/doctor/facts.h"
#include "hvdrun/job/rundir.h"
#include "hvdrun/topo/layout.h"
#include "proto/base/clock.h"
#include "proto/base/err.h"
#include "proto/base/ports.h"

#define ADDRESSES_MAX 16
#define BACK_MS 3000 /* for each address: connect, and for the answer */
#define TEXT_MAX_BYTES 4096

struct questions {
    char port[16], nonce[64], wdir[TEXT_MAX_BYTES], program[TEXT_MAX_BYTES];
    char address[ADDRESSES_MAX + 1][64];
    size_t naddresses;
};

static void fact(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void fact(const char *fmt, ...)
{
    va_list ap;

    fputs(HVI_FACTS_MARK, stdout);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

static void add_address(struct questions *q, const char *address)
{
    for (size_t i = 0; i < q->naddresses; i++)
        if (strcmp(q->address[i], address) == 0)
            return;
    if (q->naddresses <= ADDRESSES_MAX && address[0] != '\0')
        snprintf(q->address[q->naddresses++], sizeof q->address[0], "%s", address);
}

static void add_ssh(struct questions *q)
{
    const char *ssh = getenv("SSH_CONNECTION");
    char client[64];

    if (ssh == NULL)
        return;
    snprintf(client, sizeof client, "%.*s", (int)strcspn(ssh, " "), ssh);
    add_address(q, client);
}

static void read_questions(struct questions *q)
{
    char line[TEXT_MAX_BYTES + 16];

    while (fgets(line, sizeof line, stdin) != NULL) {
        char *value = line + strcspn(line, " \n");
        bool more = *value == ' ';

        *value++ = '\0';
        if (line[0] == '\0')
            return;
        value = more ? value : value - 1;
        value[strcspn(value, "\n")] = '\0';
        if (strcmp(line, "port") == 0)
            snprintf(q->port, sizeof q->port, "%.15s", value);
        else if (strcmp(line, "nonce") == 0)
            snprintf(q->nonce, sizeof q->nonce, "%.62s\n", value);
        else if (strcmp(line, "address") == 0)
            add_address(q, value);
        else if (strcmp(line, "ssh") == 0)
            add_ssh(q);
        else if (strcmp(line, "wdir") == 0)
            snprintf(q->wdir, sizeof q->wdir, "%.4000s", value);
        else if (strcmp(line, "program") == 0)
            snprintf(q->program, sizeof q->program, "%.4000s", value);
    }
}

static int entries(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;

    for (const struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    if (d != NULL)
        closedir(d);
    return n;
}

static void tell_limit(const char *name, int which)
{
    struct rlimit r;

    if (getrlimit((__rlimit_resource_t)which, &r) != 0)
        return;
    fact("%s %.0f %.0f %d", name,
         r.rlim_cur == RLIM_INFINITY ? -1.0 : (double)r.rlim_cur,
         r.rlim_max == RLIM_INFINITY ? -1.0 : (double)r.rlim_max,
         entries("/sys/class/infiniband"));
}

static void tell_shm(void)
{
    struct statvfs s;

    if (statvfs("/dev/shm", &s) != 0)
        fact("shm %s", strerror(errno));
    else
        fact("shm %.0f %.0f", (double)s.f_blocks * (double)s.f_frsize,
             (double)s.f_bavail * (double)s.f_frsize);
}

static void tell_rundir(void)
{
    char dir[HVI_RUNDIR_MAX];
    struct hvi_err err = {""};

    if (hvi_rundir_make(dir, &err) != HVD_OK) {
        fact("rundir failed %s", err.text);
        return;
    }
    fact("rundir ok %.*s", (int)(strrchr(dir, '/') - dir), dir);
    hvi_rundir_remove(dir);
}

static void tell_job(const struct questions *q)
{
    bool there = q->wdir[0] == '\0' || chdir(q->wdir) == 0;

    if (!there)
        fact("wdir failed %s: %s", q->wdir, strerror(errno));
    else if (q->wdir[0] != '\0')
        fact("wdir ok %s", q->wdir);
    if (!there || strchr(q->program, '/') == NULL) /* else PATH decides */
        return;
    if (access(q->program, X_OK) == 0)
        fact("program ok %s", q->program);
    else
        fact("program failed %s: %s", q->program, strerror(errno));
}

static void tell_networks(void)
{
    struct ifaddrs *list = NULL;
    char text[INET6_ADDRSTRLEN];

    if (getifaddrs(&list) != 0)
        return;
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        socklen_t n;

        if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0 ||
            (i->ifa_flags & IFF_LOOPBACK) != 0)
            continue;
        n = i->ifa_addr->sa_family == AF_INET    ? sizeof(struct sockaddr_in)
            : i->ifa_addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                 : 0;
        if (n > 0 && getnameinfo(i->ifa_addr, n, text, sizeof text, NULL, 0,
                                 NI_NUMERICHOST) == 0)
            fact("nic %s %s", i->ifa_name, text);
    }
    freeifaddrs(list);
}

/* "2.28.9 (libnccl.so.2)": what a rank would find without a framework. */
static void tell_nccl(void)
{
    void *lib = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
    void *f = lib != NULL ? dlsym(lib, "ncclGetVersion") : NULL;
    int (*get)(int *) = NULL;
    int v = 0;

    memcpy(&get, &f, sizeof f);
    if (get == NULL || get(&v) != 0)
        fact("nccl failed libnccl.so.2 not found");
    else if (v < 21800)
        fact("nccl failed version code %d is too old: GPU collectives need 2.18", v);
    else
        fact("nccl ok %d.%d.%d (libnccl.so.2)", v / 10000, v / 100 % 100, v % 100);
}

static void tell_gpus(void)
{
    static struct hvi_gpus found;
    static struct hvi_gpus visible;
    const char *root = getenv(HVI_GPU_ROOT_ENV) != NULL ? getenv(HVI_GPU_ROOT_ENV) : "";
    char driver[32] = "", path[TEXT_MAX_BYTES], mask[64] = "";
    FILE *f;
    int on_bus;

    snprintf(path, sizeof path, "%.4000s/sys/module/nvidia/version", root);
    f = fopen(path, "re");

    if (f != NULL && fscanf(f, "%31s", driver) != 1)
        driver[0] = '\0';
    if (f != NULL)
        fclose(f);
    hvi_gpus_find(root, &found);
    hvi_gpus_visible(&found, getenv("CUDA_VISIBLE_DEVICES"), &visible);
    on_bus = hvi_gpus_on_bus(root);
    if (visible.n != found.n)
        snprintf(mask, sizeof mask, ", %d visible (CUDA_VISIBLE_DEVICES)", visible.n);
    if (found.n == 0 && on_bus > 0)
        fact("gpus none usable: %d on the PCI bus, no driver or no access", on_bus);
    else
        fact("gpus %d%s%s%s", found.n, driver[0] != '\0' ? ", driver " : "", driver,
             mask);
    if (found.n > 0)
        tell_nccl();
}

/* The answer is the nonce: it is hvdrun, and not whoever else has the port. */
static const char *call(const struct addrinfo *a, const char *nonce)
{
    int64_t deadline = hvi_now_ms() + BACK_MS;
    static char gone[HVI_PORTS_TEXT];
    char answer[64] = "";
    struct pollfd p = {.events = POLLOUT};
    const char *why = NULL;
    socklen_t n = sizeof(int);
    int e = 0;

    p.fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (p.fd < 0)
        return strerror(errno);
    if (connect(p.fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS)
        why = hvi_ports_gone(errno, gone) != NULL ? gone : strerror(errno);
    if (why == NULL && poll(&p, 1, hvi_ms_left(deadline)) != 1)
        why = "no answer";
    if (why == NULL && (getsockopt(p.fd, SOL_SOCKET, SO_ERROR, &e, &n) != 0 || e != 0))
        why = strerror(e);
    if (why == NULL && send(p.fd, nonce, strlen(nonce), MSG_NOSIGNAL) < 0)
        why = strerror(errno);
    p.events = POLLIN;
    if (why == NULL && poll(&p, 1, hvi_ms_left(deadline)) != 1)
        why = "accepted, but no answer from hvdrun";
    if (why == NULL &&
        (recv(p.fd, answer, sizeof answer - 1, 0) <= 0 || strcmp(answer, nonce) != 0))
        why = "something else than hvdrun answers";
    close(p.fd);
    return why;
}

static void tell_back(const struct questions *q)
{
    for (size_t i = 0; i < q->naddresses && q->port[0] != '\0'; i++) {
        struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                 .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
        struct addrinfo *list = NULL;
        int64_t start = hvi_now_ms();
        const char *why;

        if (getaddrinfo(q->address[i], q->port, &hints, &list) != 0)
            continue;
        why = call(list, q->nonce);
        freeaddrinfo(list);
        if (why != NULL) {
            fact("back %s failed %s", q->address[i], why);
            continue;
        }
        fact("back %s ok %lld", q->address[i], (long long)(hvi_now_ms() - start));
        return;
    }
}

int hvi_agent_check(void)
{
    static struct questions q;
    struct timeval now;

    signal(SIGPIPE, SIG_DFL);
    alarm(60); /* hvdrun may be gone */
    setvbuf(stdout, NULL, _IOLBF, 0);
    fact("version %s", HVI_VERSION);
    read_questions(&q);
    gettimeofday(&now, NULL);
    fact("time %.3f", (double)now.tv_sec + (double)now.tv_usec / 1e6);
    fact("cores %d", hvi_topo_cores());
    tell_limit("nofile", RLIMIT_NOFILE);
    tell_limit("memlock", RLIMIT_MEMLOCK);
    tell_shm();
    tell_rundir();
    tell_job(&q);
    tell_gpus();
    tell_networks();
    tell_back(&q);
    fact("end");
    return fflush(stdout) == 0 ? 0 : 1;
}
