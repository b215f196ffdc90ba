//! Walking paths.
