//! Volumes that mke2fs made and the kernel filled: everything parses, matches its checksum and comes back
//! byte for byte.

mod images;
mod journal;
mod volumes;
mod walk;
