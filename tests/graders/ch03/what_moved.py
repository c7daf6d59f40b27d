"""Answers to `what_moved`: the five pairs."""


def the_gpu_got_faster_each_time():
    return dict.fromkeys("ABCDE", "faster")


def fuller_each_time():
    return dict.fromkeys("ABCDE", "fuller")


def goes_by_the_tokens_in_all():
    return {"A": "fuller", "B": "busier", "C": "busier", "D": "fuller", "E": "busier"}


def believes_the_label_of_the_new_gpu():
    return {"A": "fuller", "B": "faster", "C": "busier", "D": "faster", "E": "fuller"}


def thinks_that_continuous_is_always_fuller():
    return {"A": "fuller", "B": "faster", "C": "busier", "D": "busier", "E": "faster"}


def takes_more_traffic_for_a_better_engine():
    return {"A": "fuller", "B": "faster", "C": "fuller", "D": "busier", "E": "fuller"}


def leaves_one_out():
    return {"A": "fuller", "B": "faster", "C": "busier", "D": "busier"}


def forgets_to_return():
    the_gpu_got_faster_each_time()


def names_the_pairs_alone():
    return list("ABCDE")


def in_other_words():
    return {"A": "full", "B": "fast", "C": "busy", "D": "busy", "E": "full"}


def read_from_the_table():
    return {"A": "fuller", "B": "faster", "C": "busier", "D": "busier", "E": "fuller"}


def in_another_order():
    return dict(zip("EDCBA", ["fuller", "busier", "busier", "faster", "fuller"], strict=True))


def by_part():
    found = {}
    for part, pairs in {"fuller": "AE", "faster": "B", "busier": "CD"}.items():
        for pair in pairs:
            found[pair] = part
    return found


WRONG = {
    the_gpu_got_faster_each_time: {"pairs": "no step got faster"},
    fuller_each_time: {"pairs": "compare steps per busy second"},
    goes_by_the_tokens_in_all: {"pairs": "the steps themselves changed"},
    believes_the_label_of_the_new_gpu: {"pairs": "the story"},
    thinks_that_continuous_is_always_fuller: {"pairs": "no step got faster"},
    takes_more_traffic_for_a_better_engine: {"pairs": "more work came"},
    leaves_one_out: {"pairs": "a word for each of the five"},
    in_other_words: {"pairs": "a word for each of the five"},
    names_the_pairs_alone: {"pairs": "a dictionary"},
    forgets_to_return: {"pairs": "end in a `return`"},
}
RIGHT = [read_from_the_table, in_another_order, by_part]
