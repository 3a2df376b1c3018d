"""Labels, intervals, tables and figures of records. Nothing here runs an experiment."""
