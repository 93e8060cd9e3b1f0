/** Intrusive doubly linked list. Link fields are embedded; nothing is allocated. */
#ifndef HVI_BASE_LIST_H
#define HVI_BASE_LIST_H

#include <stddef.h>

struct hvi_link {
    struct hvi_link *prev, *next;
};

#define HVI_CONTAINER(ptr, type, member)                                               \
    ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/** Walk; the body may remove `it` itself. `tmp` is a second struct hvi_link *. */
#define HVI_LIST_EACH(head, it, tmp)                                                   \
    for ((it) = (head)->next, (tmp) = (it)->next; (it) != (head);                      \
         (it) = (tmp), (tmp) = (it)->next)

static inline void hvi_list_init(struct hvi_link *head)
{
    head->prev = head->next = head;
}

static inline int hvi_list_empty(const struct hvi_link *head)
{
    return head->next == head;
}

static inline void hvi_list_append(struct hvi_link *head, struct hvi_link *link)
{
    link->prev = head->prev;
    link->next = head;
    head->prev->next = link;
    head->prev = link;
}

/** Safe on a link that is in no list, if hvi_list_init was called on it. */
static inline void hvi_list_remove(struct hvi_link *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    link->prev = link->next = link;
}

#endif
