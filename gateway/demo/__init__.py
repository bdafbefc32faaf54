"""
The main job, shown with real processes: producers that notice no outage.

Two brokers and a gateway are started, producers send over real sockets, the primary is killed
and comes back, the syphon moves everything to where it belongs, and an audit of every queue
says what was lost.
"""
