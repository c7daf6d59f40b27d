"""An OpenAI-compatible server that answers at the simulated engine's pace.

`serve` runs one in a thread, for tests; ``servinglab serve-sim`` runs one in a process of its own. The modules, each
with one question: `server` (what is served), `live` (when does a step end?), `api` (what does a request ask for, how is
it answered?), `fields` (which of its fields are done?), `words` (what do answers say?), `listener` (who may come in?),
`http` (where does a request end?), `faults` (what goes wrong on purpose?), `prometheus` (what is
counted?).
"""

from servinglab.sim_server.server import Settings, SimServer, serve

__all__ = ["Settings", "SimServer", "serve"]
