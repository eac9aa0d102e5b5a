//! What whole-connection tests share: two state machines joined in memory, a fake clock, random splits.
