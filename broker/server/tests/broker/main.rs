//! The broker through its socket: frames in, frames and bytes on disk out.

#[cfg(test)]
mod admin;
#[cfg(test)]
mod bad_groups;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod compaction;
#[cfg(test)]
mod configs;
#[cfg(test)]
mod connections;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod failing_disk;
#[cfg(test)]
mod fetch;
#[cfg(test)]
mod fetch_sessions;
#[cfg(test)]
mod flush;
#[cfg(test)]
mod groups;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod operators;
#[cfg(test)]
mod pipelining;
#[cfg(test)]
mod power_cut;
#[cfg(test)]
mod produce;
#[cfg(test)]
mod restart;
#[cfg(test)]
mod retention;
#[cfg(test)]
mod security;
#[cfg(test)]
mod support;
#[cfg(test)]
mod versions;
