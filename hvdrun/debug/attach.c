/*
 * Happy path: connect; ATTACH; ATTACHED; the terminal becomes raw; keys go as
 * STDIN_DATA, OUTPUT comes, a new window size goes as TERM_SIZE; Ctrl-] d detaches, or
 * EXITED tells how the rank ended; the terminal is as before. Failure paths: refused:
 * one line. hvdrun is stopped: one line, and we wait on. The connection ends: hvdrun is
 * gone. A signal: the terminal first.
 */
#include "hvdrun/debug/attach.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#include "hvdrun/io/procstat.h"
#include "hvdrun/job/exitcode.h"
#include "proto/base/env.h"
#include "proto/msg/msg.h"

#define KEYS_BYTES (16 * 1024)   /* of one STDIN_DATA */
#define WINDOW_BYTES (64 * 1024) /* of keys that the debugger has not taken */
#define READ_BYTES (256 * 1024)
#define ESCAPE 0x1d /* Ctrl-] */
#define RUNNING (-1)
#define ANSWER_MS 2000 /* until we look why hvdrun does not answer */

/* What a program has told the terminal and would not take back when we leave it. */
enum mode { MODE_PASTE = 2004, MODE_SCREEN = 1049, MODE_CURSOR = 25 };
struct modes {
    bool paste, screen, cursor_off;
    int state; /* bytes of "ESC [ ?" seen; 3: in the number */
    int number;
};

struct session {
    int sock, signals, rank;
    bool tty;    /* stdin is one */
    bool shared; /* hvdrun writes to it too: its lines end as usual */
    bool raw, attached, eof, escaped, told_stopped;
    struct termios saved;
    struct hvi_buf rx, tx;
    uint64_t unacked;
    struct modes modes;
    int status; /* RUNNING, or the exit status */
    char last[256];
};

static void finish(struct session *s, int status, const char *text)
{
    if (s->status != RUNNING)
        return;
    s->status = status;
    snprintf(s->last, sizeof s->last, "%s", text);
}

/* ---- the terminal */

static void write_all(const void *data, size_t size_bytes)
{
    const char *at = data;

    while (size_bytes > 0) {
        ssize_t n = write(STDOUT_FILENO, at, size_bytes);

        if (n < 0 && errno == EAGAIN) {
            struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};

            (void)poll(&p, 1, -1);
            continue;
        }
        if (n < 0 && errno != EINTR)
            return;
        at += n > 0 ? n : 0;
        size_bytes -= n > 0 ? (size_t)n : 0;
    }
}

static void set_mode(struct modes *m, bool on)
{
    if (m->number == MODE_PASTE)
        m->paste = on;
    else if (m->number == MODE_SCREEN)
        m->screen = on;
    else if (m->number == MODE_CURSOR)
        m->cursor_off = !on;
}

/* Follows ESC [ ? NUMBER h and l. */
static void follow(struct modes *m, const uint8_t *data, size_t size_bytes)
{
    static const char begin[] = "\033[?";

    for (size_t i = 0; i < size_bytes; i++) {
        char c = (char)data[i];

        if (m->state < 3) {
            m->state = c == begin[m->state] ? m->state + 1 : c == begin[0];
            m->number = 0;
        } else if (c >= '0' && c <= '9' && m->number < 10000) {
            m->number = 10 * m->number + (c - '0');
        } else {
            if (c == 'h' || c == 'l')
                set_mode(m, c == 'h');
            m->state = c == begin[0];
        }
    }
}

static void go_raw(struct session *s)
{
    struct termios t;

    if (!s->tty || s->raw)
        return;
    t = s->saved;
    cfmakeraw(&t);
    if (s->shared)
        t.c_oflag |= OPOST | ONLCR;
    s->raw = tcsetattr(STDIN_FILENO, TCSADRAIN, &t) == 0;
}

static void leave_raw(struct session *s)
{
    struct modes *m = &s->modes;
    char text[64];

    if (!s->raw)
        return;
    snprintf(text, sizeof text, "%s%s%s", m->paste ? "\033[?2004l" : "",
             m->screen ? "\033[?1049l" : "", m->cursor_off ? "\033[?25h" : "");
    write_all(text, strlen(text));
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &s->saved);
    s->raw = false;
}

/* ---- to hvdrun */

static void send_frame(struct session *s, uint32_t type, const void *body)
{
    if (hvi_msg_put(&s->tx, type, body) != HVD_OK)
        finish(s, HVI_EXIT_LAUNCHER, "out of memory");
}

static void send_size(struct session *s)
{
    Hvi__TermSize msg = HVI__TERM_SIZE__INIT;
    struct winsize w;

    if ((ioctl(STDIN_FILENO, TIOCGWINSZ, &w) != 0 &&
         ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) != 0) ||
        w.ws_row == 0 || w.ws_col == 0)
        return;
    msg.rank = s->rank;
    msg.rows = w.ws_row;
    msg.columns = w.ws_col;
    send_frame(s, HVI_MSG_TERM_SIZE, &msg);
}

static void send_hello(struct session *s)
{
    Hvi__Attach msg = HVI__ATTACH__INIT;

    msg.version = (char *)HVI_VERSION;
    msg.rank = s->rank;
    send_frame(s, HVI_MSG_ATTACH, &msg);
    send_size(s);
}

static void send_keys(struct session *s, uint8_t *keys, size_t n)
{
    Hvi__StdinData msg = HVI__STDIN_DATA__INIT;

    if (n == 0)
        return;
    msg.rank = s->rank;
    msg.data.data = keys;
    msg.data.len = n;
    s->unacked += n;
    send_frame(s, HVI_MSG_STDIN_DATA, &msg);
}

/* Takes out Ctrl-] d, and one of two Ctrl-]. Returns how many are left in keys, which
 * has room for one more than n. */
static size_t filter(struct session *s, uint8_t *keys, const uint8_t *from, size_t n)
{
    size_t kept = 0;

    for (size_t i = 0; i < n; i++) {
        bool escaped = s->escaped;

        s->escaped = false;
        if (!escaped && from[i] == ESCAPE) {
            s->escaped = true;
        } else if (escaped && from[i] == 'd') {
            finish(s, HVI_EXIT_OK, "detached");
            break;
        } else {
            if (escaped && from[i] != ESCAPE)
                keys[kept++] = ESCAPE;
            keys[kept++] = from[i];
        }
    }
    return kept;
}

static void read_keys(struct session *s)
{
    uint8_t from[KEYS_BYTES], keys[2 * KEYS_BYTES];
    size_t room = (WINDOW_BYTES - s->unacked + 1) / 2; /* filter() may double them */
    ssize_t n = read(STDIN_FILENO, from, room < sizeof from ? room : sizeof from);

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n <= 0) {
        s->eof = true; /* what is fed by a pipe goes on until the debugger ends */
        if (s->tty)
            finish(s, HVI_EXIT_SIGNAL + SIGHUP, "the terminal is gone");
        return;
    }
    if (s->tty)
        send_keys(s, keys, filter(s, keys, from, (size_t)n));
    else
        send_keys(s, from, (size_t)n);
}

/* ---- from hvdrun */

static void on_attached(struct session *s, const Hvi__Attached *m)
{
    char text[512];

    if (m->status != 0) {
        finish(s, HVI_EXIT_USAGE, m->text);
        return;
    }
    s->attached = true;
    s->unacked = m->unacked; /* sent by who was attached before */
    if (s->tty) {
        snprintf(text, sizeof text, "[%.300s: Ctrl-] d detaches]\n", m->text);
        write_all(text, strlen(text));
    }
    go_raw(s);
}

static void on_exited(struct session *s, const Hvi__Exited *m)
{
    char words[128], text[192];

    hvi_exit_words(m->wait_status, words, sizeof words);
    snprintf(text, sizeof text, "rank %d %s", m->rank, words);
    finish(s, hvi_exit_code(m->wait_status), text);
}

static void on_frame(struct session *s, const struct hvi_msg *msg)
{
    const Hvi__Output *out = msg->body;
    uint64_t bytes;

    switch (msg->type) {
    case HVI_MSG_ATTACHED:
        on_attached(s, msg->body);
        break;
    case HVI_MSG_OUTPUT:
        follow(&s->modes, out->data.data, out->data.len);
        write_all(out->data.data, out->data.len);
        break;
    case HVI_MSG_OUTPUT_ACK:
        bytes = ((const Hvi__OutputAck *)msg->body)->bytes;
        s->unacked = bytes < s->unacked ? s->unacked - bytes : 0;
        break;
    case HVI_MSG_EXITED:
        on_exited(s, msg->body);
        break;
    default:
        finish(s, HVI_EXIT_LAUNCHER, "hvdrun sent what is not known here");
    }
}

static void deliver(struct session *s)
{
    struct hvi_err err = {""};

    while (s->status == RUNNING) {
        struct hvi_msg msg;
        enum hvd_status rc = hvi_msg_take(&s->rx, &msg, &err);

        if (rc == HVD_INPROGRESS)
            return;
        if (rc != HVD_OK) {
            finish(s, HVI_EXIT_LAUNCHER, err.text);
            return;
        }
        on_frame(s, &msg);
        hvi_msg_free(&msg);
    }
}

static void receive(struct session *s)
{
    uint8_t *room = hvi_buf_reserve(&s->rx, READ_BYTES);
    ssize_t n = room != NULL ? recv(s->sock, room, READ_BYTES, 0) : -1;

    if (n < 0 && room != NULL && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0) {
        hvi_buf_commit(&s->rx, (size_t)n);
        deliver(s);
        return;
    }
    finish(s, HVI_EXIT_LAUNCHER, s->attached ? "hvdrun is gone" : "hvdrun hung up");
}

static void transmit(struct session *s)
{
    ssize_t n = send(s->sock, hvi_buf_peek(&s->tx), hvi_buf_size(&s->tx), MSG_NOSIGNAL);

    if (n > 0)
        hvi_buf_consume(&s->tx, (size_t)n);
    else if (errno != EAGAIN && errno != EINTR)
        receive(s); /* it may have said why */
}

/* ---- signals */

static int open_signals(void)
{
    static const int list[] = {SIGWINCH, SIGTERM, SIGHUP, SIGINT,
                               SIGQUIT,  SIGTSTP, SIGCONT};
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        sigaddset(&set, list[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void on_signal(struct session *s)
{
    struct signalfd_siginfo info;
    char text[64];

    if (read(s->signals, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    switch (info.ssi_signo) {
    case SIGTSTP:
        leave_raw(s);
        raise(SIGSTOP);
        break;
    case SIGCONT: /* whoever had the terminal meanwhile has changed it */
        s->raw = false;
        if (s->attached)
            go_raw(s);
        send_size(s);
        break;
    case SIGWINCH:
        send_size(s);
        break;
    default:
        snprintf(text, sizeof text, "ended by %s",
                 hvi_signal_name((int)info.ssi_signo));
        finish(s, HVI_EXIT_SIGNAL + (int)info.ssi_signo, text);
    }
}

/* ---- all of it */

/* That hvdrun has not answered: its kernel has taken our connection all the same. */
static void look_at_hvdrun(struct session *s)
{
    struct ucred peer;
    socklen_t size = sizeof peer;

    if (getsockopt(s->sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
        strcmp(hvi_procstat(peer.pid), "stopped") != 0)
        return;
    s->told_stopped = true;
    fprintf(stderr,
            "hvdrun attach: hvdrun is stopped; waiting for it to go on "
            "(kill -CONT %d)\n",
            (int)peer.pid);
}

static void serve(struct session *s)
{
    while (s->status == RUNNING) {
        bool keys = s->attached && !s->eof && s->unacked < WINDOW_BYTES;
        struct pollfd p[3] = {
            {.fd = s->sock, .events = POLLIN},
            {.fd = s->signals, .events = POLLIN},
            {.fd = keys ? STDIN_FILENO : -1, .events = POLLIN},
        };
        int n;

        if (hvi_buf_size(&s->tx) > 0)
            p[0].events |= POLLOUT;
        n = poll(p, 3, s->attached || s->told_stopped ? -1 : ANSWER_MS);
        if (n == 0)
            look_at_hvdrun(s);
        if (n <= 0)
            continue;
        if (p[1].revents != 0)
            on_signal(s);
        if (p[0].revents & POLLOUT)
            transmit(s);
        if (p[0].revents & ~POLLOUT)
            receive(s);
        if (p[2].revents != 0)
            read_keys(s);
    }
}

static int usage(FILE *out)
{
    fputs("usage: hvdrun attach [JOB] RANK\n"
          "Connects this terminal to a rank that 'hvdrun --debug' runs under a "
          "debugger.\n"
          "JOB is the pid of that hvdrun; it may be left out when there is only one.\n"
          "Ctrl-] d detaches, and the debugger stays; Ctrl-] twice sends one.\n"
          "Exit status: the rank's when it ends, 0 detached, 2 refused, 125 hvdrun is "
          "gone.\n",
          out);
    return out == stdout ? HVI_EXIT_OK : HVI_EXIT_USAGE;
}

static int complain(const char *text)
{
    fprintf(stderr, "hvdrun attach: %s\n", text);
    return HVI_EXIT_USAGE;
}

/* The last words: on a line of their own, whatever the debugger has left there. */
static void say_end(const struct session *s)
{
    if (s->attached && s->tty)
        fprintf(stderr, "\n[%s]\n", s->last);
    else if (!s->attached || s->status == HVI_EXIT_LAUNCHER)
        fprintf(stderr, "hvdrun attach: %s\n", s->last);
}

int hvi_attach_main(int argc, char **argv)
{
    static struct session s = {.status = RUNNING};
    struct hvi_err err = {""};
    int64_t rank;

    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
        return usage(stdout);
    s.shared = argc > 1 && strcmp(argv[1], "--shared") == 0; /* hvdrun's own */
    argc -= s.shared;
    argv += s.shared;
    if (argc < 2 || argc > 3)
        return usage(stderr);
    if (hvi_parse_int("RANK", argv[argc - 1], 0, HVD_RANKS_MAX - 1, &rank, &err) !=
            HVD_OK ||
        hvi_attach_connect(argc > 2 ? argv[1] : NULL, &s.sock, &err) != HVD_OK)
        return complain(err.text);
    s.rank = (int)rank;
    s.tty = tcgetattr(STDIN_FILENO, &s.saved) == 0;
    s.signals = open_signals();
    if (s.signals < 0)
        return complain(strerror(errno));
    send_hello(&s);
    serve(&s);
    leave_raw(&s);
    say_end(&s);
    hvi_buf_fini(&s.rx);
    hvi_buf_fini(&s.tx);
    return s.status;
}
