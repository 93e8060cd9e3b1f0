/*
 * JOIN: the rank counts as ready for allreduce until all ranks of set 0 have joined and
 * their earlier operations, which rest on that, have ended ("settled").
 */
#include "coordinator/core/state.h"

static void all_joined(struct hvi_core *core)
{
    Hvi__JoinDone m = HVI__JOIN_DONE__INIT;

    hvi_ready_flush(core);
    m.epoch = core->epoch;
    m.last_rank = core->last_joined;
    m.generation = ++core->join_generation;
    hvi_emit_all(core, NULL, -1, HVI_MSG_JOIN_DONE, &m);
    for (int32_t r = 0; r < core->size; r++)
        core->members[r].joined = core->members[r].settled = false;
    core->njoined = core->nsettled = 0;
}

/* Nobody can join a job that a rank has left: remind the caller of it. */
static void remind_of_gone(struct hvi_core *core, const struct conn *c)
{
    Hvi__PeerBye bye = HVI__PEER_BYE__INIT;

    bye.epoch = core->epoch;
    while (!rankset_has(&core->gone, bye.rank))
        bye.rank++;
    hvi_emit_msg(core, c, HVI_MSG_PEER_BYE, &bye, false);
}

void hvi_join_message(struct hvi_core *core, struct conn *c, bool pending)
{
    struct member *m = hvi_core_member(core, c);

    if (core->gone_any) {
        remind_of_gone(core, c);
        return;
    }
    if (m->joined && (m->settled || pending)) {
        hvi_core_violation(core, c, "JOIN twice");
        return;
    }
    m->settled = !pending;
    core->nsettled += !pending;
    if (!m->joined) {
        m->joined = true;
        core->njoined++;
        core->last_joined = c->rank;
        hvi_negotiate_recheck(core);
        hvi_ready_recheck(core);
    }
    if (core->nsettled == core->size)
        all_joined(core);
}
