"""Language models for the roles of evolution: endpoints, budget, journal, structured answers."""
