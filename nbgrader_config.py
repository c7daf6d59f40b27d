"""nbgrader's settings: `nbgrader autograde` run from here also puts every submission into the sandbox.

It also refuses links. nbgrader has no setting for that: its command and its formgrader get the class that does.
"""

from nbgrader.apps import api, autogradeapp
from servinglab.grading.gradebook import AutogradePlainFiles, settings

c = get_config()  # noqa: F821  (nbgrader provides it)
c.merge(settings())
for module in (api, autogradeapp):
    module.Autograde = AutogradePlainFiles
