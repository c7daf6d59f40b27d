"""nbgrader's settings: `nbgrader autograde` run from here also puts every submission into the sandbox."""

from servinglab.grading.gradebook import settings

c = get_config()  # noqa: F821  (nbgrader provides it)
c.merge(settings())
