#include "hvdrun/cli/optplace.h"

#include <string.h>

struct word {
    const char *word, *advice;
};

/* Of both options. */
static const struct word places[] = {
    {"hwthread",
     "the nearest is core: a rank gets whole cores, with all their threads"},
    {"l1cache", "the nearest is core"},
    {"l2cache", "the nearest is core; -c N gives a rank the N cores of one cache"},
    {"l3cache", "the nearest is numa; -c N gives a rank the N cores of one cache"},
    {"package", "the word here is socket"},
    {"sockets", "the word here is socket"},
    {"cores", "the word here is core"},
    {"numanode", "the word here is numa"},
    {"board", "the nearest is socket"},
    {"user", "use taskset or numactl in front of the program, and --bind-to none"},
    {NULL, NULL}};

static const struct word maps[] = {
    {"node", "the nearest is slot: ranks fill the hosts in the order of -H; to spread "
             "them give each host its number, -H a:2,b:2"},
    {"host", "the nearest is slot: ranks fill the hosts in the order of -H; to spread "
             "them give each host its number, -H a:2,b:2"},
    {"machine", "the nearest is slot; ranks fill the hosts in the order of -H"},
    {"seq",
     "the nearest is slot: name the hosts with -H in the order wanted, a:1,b:1,a:1"},
    {"rankfile", "the nearest is slot: name the hosts with -H in the order wanted"},
    {"dist", "the nearest is auto: each rank near its GPU"},
    {"gpu", "that is auto, the default: each rank near its GPU"},
    {"none", "the nearest is slot, with --bind-to none"},
    {NULL, NULL}};

static const struct word binds[] = {
    {"slot", "the nearest is core"},
    {"node", "the nearest is none: a rank may use the whole host"},
    {"host", "the nearest is none: a rank may use the whole host"},
    {"machine", "the nearest is none: a rank may use the whole host"},
    {"cpu-list", "use taskset in front of hvdrun: ranks share what it is given"},
    {NULL, NULL}};

static const char *find(const struct word *list, const char *value, size_t n)
{
    for (; list->word != NULL; list++)
        if (strlen(list->word) == n && strncmp(list->word, value, n) == 0)
            return list->advice;
    return NULL;
}

enum hvd_status hvi_optplace_refuse(bool map, const char *what, const char *value,
                                    const char *words, struct hvi_err *err)
{
    size_t n = strcspn(value, ":");
    const char *advice = find(places, value, n);
    char shown[64];

    hvi_escape(shown, sizeof shown, value, strlen(value));
    if (strncmp(value, "ppr:", 4) == 0 || strcmp(value, "ppr") == 0)
        return hvi_fail(err, HVD_EINVAL,
                        "%s: '%s': how many ranks a host has is said by -H host:N; "
                        "where they go there by --map-by with one of: %s",
                        what, shown, words);
    if (strchr(value, ':') != NULL)
        return hvi_fail(
            err, HVD_EINVAL,
            "%s: '%s': only the word before the ':' is possible, one of: %s; "
            "PE=N is -c N, OVERSUBSCRIBE is --oversubscribe",
            what, shown, words);
    if (advice == NULL)
        advice = find(map ? maps : binds, value, n);
    if (advice != NULL)
        return hvi_fail(err, HVD_EINVAL, "%s: '%s' is not one of: %s; %s", what, shown,
                        words, advice);
    return hvi_fail(err, HVD_EINVAL, "%s: '%s' is not one of: %s", what, shown, words);
}
