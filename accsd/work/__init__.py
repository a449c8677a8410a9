"""One claimed task, from the claim to its verdict: the protocol it speaks, its log, its folder, its lease."""
