#include "test.h"

#include "proto/base/list.h"

struct item {
    int value;
    struct hvi_link link;
};

static int sum_in_order(struct hvi_link *head)
{
    struct hvi_link *it;
    struct hvi_link *tmp;
    int digits = 0;

    HVI_LIST_EACH(head, it, tmp)
    digits = digits * 10 + HVI_CONTAINER(it, struct item, link)->value;
    return digits;
}

Test(list, appends_in_order_and_removes_anywhere, .timeout = 10)
{
    struct item items[5];
    struct hvi_link head;

    hvi_list_init(&head);
    cr_assert(hvi_list_empty(&head));
    for (int i = 0; i < 5; i++) {
        items[i].value = i + 1;
        hvi_list_append(&head, &items[i].link);
    }
    cr_assert_eq(sum_in_order(&head), 12345);
    hvi_list_remove(&items[2].link);
    hvi_list_remove(&items[0].link);
    hvi_list_remove(&items[4].link);
    cr_assert_eq(sum_in_order(&head), 24);
    hvi_list_remove(&items[4].link); /* in no list: harmless */
    cr_assert_eq(sum_in_order(&head), 24);
}

Test(list, the_walk_may_remove_what_it_stands_on, .timeout = 10)
{
    struct item items[4];
    struct hvi_link head;
    struct hvi_link *it;
    struct hvi_link *tmp;
    int seen = 0;

    hvi_list_init(&head);
    for (int i = 0; i < 4; i++)
        hvi_list_append(&head, &items[i].link);
    HVI_LIST_EACH(&head, it, tmp)
    {
        hvi_list_remove(it);
        seen++;
    }
    cr_assert_eq(seen, 4);
    cr_assert(hvi_list_empty(&head));
}
