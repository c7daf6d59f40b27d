"""Answers to `capacity_runs`: which of the six runs show capacity."""


def the_run_with_the_most_completions():
    return ["B", "D", "E"]


def every_run_has_a_capacity():
    return list("ABCDEF")


def every_run_with_a_long_line():
    return ["A", "C", "E", "F"]


def a_cold_start_shows_capacity():
    return ["A", "E", "C"]


def only_the_obvious_run():
    return ["A"]


def no_run_at_all():
    return []


def one_word():
    return "A and E"


def forgets_to_return():
    print(["A", "E"])


LEFT = ["A", "E"]


def takes_away_at_each_call():
    return [LEFT.pop()] if LEFT else []


def as_a_list():
    return ["A", "E"]


def as_a_set_in_another_order():
    return {"E", "A"}


def computed():
    tables = {"A": (25.0, 18.7), "B": (8.0, 8.0), "C": (12.0, 12.0), "D": (18.0, 18.0), "E": (20.0, 18.7)}
    return tuple(name for name, (offered, done) in tables.items() if done < 0.98 * offered)


WRONG = {
    the_run_with_the_most_completions: {"runs": "that is the load, not the capacity"},
    every_run_has_a_capacity: {"runs": "that is the load, not the capacity"},
    every_run_with_a_long_line: {"runs": "the kitchen then catches up"},
    a_cold_start_shows_capacity: {"runs": "the kitchen then catches up"},
    only_the_obvious_run: {"runs": "slightly too many orders are enough"},
    no_run_at_all: {"runs": "at least one"},
    one_word: {"runs": "a list of texts"},
    forgets_to_return: {"runs": "end in a `return`"},
    takes_away_at_each_call: {"runs": "kept from one call to the next"},
}
RIGHT = [as_a_list, as_a_set_in_another_order, computed]
