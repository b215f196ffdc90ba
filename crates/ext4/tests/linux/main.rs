//! Both directions with Linux and e2fsprogs: each reads what the other wrote, and replays its journal.
//!
//! `ONGGI_SOAK=1` runs every variant at full size.

#[path = "../../../model/tests/host/mod.rs"]
#[allow(dead_code)]
mod host;
#[path = "../support/mod.rs"]
mod support;

mod grow;
mod image;
mod interchange;
mod replay;
mod sight;
mod steps;

/// `short`, or `long` where time does not matter.
fn soak<T>(short: T, long: T) -> T {
    if std::env::var_os("ONGGI_SOAK").is_some_and(|value| value != "0") { long } else { short }
}
