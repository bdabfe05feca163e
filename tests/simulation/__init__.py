"""A share group in a world of faults, played from one seed: engines, topic log and state log of memory, no JVM.

``python -m tests.simulation --seeds 10000 --first 0``. One ``random.Random(seed)`` decides everything: how many topics,
partitions and records, the limits, what handlers do, when an engine dies, sleeps or is refused something, and in which
order things happen. So a seed that fails is its own reproduction.

- ``scenario``: what a seed chooses before the play begins;
- ``processes``: engines as threads of which exactly one runs, so that one can be put to sleep inside any call;
- ``ports``: the ports of one engine; every effect has a point before and after it where the world may interfere;
- ``delivery``: its tasks, workers and machines, if all answers come with the delivery;
- ``late_delivery``: its calls and companion processes, if calls outlast the delivery;
- ``orphans``: its workers, if they outlive their engine;
- ``ledger_files``: the ledgers that outlive all of these;
- ``ledger``: an independent record of all that happened, record by record, which judges every commit and every call; in
  the words of ``facts``, by the rules of ``settled``;
- ``checks``: what must hold after each micro-batch;
- ``at_the_end``: what must hold once everything is finished;
- ``engine``: the real engine in such a process;
- ``gateway``: the real service for share consumers with such an engine, in a ``still_loop``;
- ``clients``: outside members, which judge what they are told; ``crowd``: who of them is there;
- ``outside``: the rules for what they ask, for the ledger;
- ``producers``: what happens to the logs of the topics;
- ``compaction``: a compaction that takes the group for idle;
- ``play``: the scheduler: who goes on, who dies, what producers do meanwhile; the quiet end in which all must finish;
- ``ranges``: lives of groups of millions of records, without a judge.
"""
