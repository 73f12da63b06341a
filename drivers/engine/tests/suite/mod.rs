// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the engine does, whatever lies between nodes. The binaries `local`, `linked`, `pooled` and `stale` run all of it; the rig
//! looks at the name of the one that it is in.

mod atomics;
mod bounded;
mod connected;
mod datagrams;
mod events;
mod frames;
mod full_events;
mod hostile;
mod keys;
mod model;
mod moving;
mod multicast;
mod regions;
mod resize;
mod shared;
mod states;
mod stopped;
mod stored;
mod timestamps;
mod traffic;
