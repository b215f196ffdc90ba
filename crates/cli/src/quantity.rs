//! Sizes and times as people write and read them.

use onggi_vfs::Timestamp;

/// Bytes from `4096`, `64K`, `1.5G`, `2TiB`: binary multiples.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is no size: digits and then K, M, G or T");
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit = unit.to_ascii_uppercase();
    let shift = match unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit) {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        _ => return Err(bad()),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let multiple = 1u64 << shift;
    let mut size = whole.parse::<u64>().map_err(|_| bad())?.checked_mul(multiple).ok_or_else(bad)?;
    if !fraction.is_empty() {
        let value: f64 = format!("0.{fraction}").parse().map_err(|_| bad())?;
        size = size.checked_add((value * multiple as f64) as u64).ok_or_else(bad)?;
    }
    Ok(size)
}

/// Bytes as `512`, `4.0K`, `17M`: at most three digits, rounded up, as ls -h writes them.
pub(crate) fn human_size(bytes: u64) -> String {
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut unit = 1u128;
    for letter in ["K", "M", "G", "T", "P", "E"] {
        unit *= 1024;
        let tenths = (u128::from(bytes) * 10).div_ceil(unit);
        if tenths < 100 {
            return format!("{}.{}{letter}", tenths / 10, tenths % 10);
        }
        let whole = u128::from(bytes).div_ceil(unit);
        if whole < 1024 || letter == "E" {
            return format!("{whole}{letter}");
        }
    }
    unreachable!("E is the last unit")
}

/// A time from `@SECONDS`, `@SECONDS.NANOSECONDS` or RFC 3339.
pub(crate) fn parse_moment(text: &str) -> Result<Timestamp, String> {
    if let Some(seconds) = text.strip_prefix('@') {
        let bad = |_| format!("{seconds:?} is no number of seconds");
        let (sec, nsec) = seconds.split_once('.').unwrap_or((seconds, "0"));
        let sec = sec.parse().map_err(bad)?;
        if nsec.len() > 9 {
            return Err("at most nine digits after the point".into());
        }
        return Ok(Timestamp { sec, nsec: format!("{nsec:0<9}").parse().map_err(bad)? });
    }
    let moment: jiff::Timestamp = text.parse().map_err(|error: jiff::Error| error.to_string())?;
    let (sec, nsec) = (moment.as_second(), moment.subsec_nanosecond());
    // jiff counts back from the second where it is before 1970.
    let back = i64::from(nsec < 0);
    let nsec = nsec + if back == 1 { 1_000_000_000 } else { 0 };
    Ok(Timestamp { sec: sec - back, nsec: u32::try_from(nsec).map_err(|_| "out of range")? })
}

fn zoned(time: Timestamp) -> Option<jiff::Zoned> {
    let nsec = i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
    Some(jiff::Timestamp::from_nanosecond(nsec).ok()?.to_zoned(jiff::tz::TimeZone::system()))
}

/// A time in the local zone as `2026-11-21 10:00`; `@SECONDS` where no calendar reaches.
pub(crate) fn short_time(time: Timestamp) -> String {
    zoned(time).map_or_else(|| format!("@{}", time.sec), |time| time.strftime("%Y-%m-%d %H:%M").to_string())
}

/// A time in the local zone as stat(1) writes it.
pub(crate) fn long_time(time: Timestamp) -> String {
    zoned(time).map_or_else(
        || format!("@{}.{:09}", time.sec, time.nsec),
        |time| time.strftime("%Y-%m-%d %H:%M:%S.%9f %z").to_string(),
    )
}

/// A time for programs: RFC 3339 in UTC; `@SECONDS` where no calendar reaches.
pub(crate) fn machine_time(time: Timestamp) -> String {
    let nsec = i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
    jiff::Timestamp::from_nanosecond(nsec)
        .map_or_else(|_| format!("@{}.{:09}", time.sec, time.nsec), |time| time.to_string())
}

/// The system's clock.
pub(crate) fn now() -> Timestamp {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Timestamp { sec: time.tv_sec, nsec: u32::try_from(time.tv_nsec).unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, size) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("64k", 65536),
            ("1.5G", 3 << 29),
            ("2TiB", 2 << 40),
            ("1MB", 1 << 20),
        ] {
            assert_eq!(parse_size(text), Ok(size), "{text}");
        }
        for text in ["", "K", "1X", "-1", "1.5.5K", "99999999999999999999", "99999999P", "1 K"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written_as_ls_does() {
        for (size, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10_239, "10K"),
            (10_240, "10K"),
            (1 << 20, "1.0M"),
            ((1 << 20) - 1, "1.0M"),
            (3 << 29, "1.5G"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human_size(size), text, "{size}");
        }
    }

    #[test]
    fn times_are_read() {
        assert_eq!(parse_moment("@0"), Ok(Timestamp { sec: 0, nsec: 0 }));
        assert_eq!(parse_moment("@12.5"), Ok(Timestamp { sec: 12, nsec: 500_000_000 }));
        assert_eq!(parse_moment("@-3"), Ok(Timestamp { sec: -3, nsec: 0 }));
        assert_eq!(parse_moment("1970-01-02T00:00:00Z"), Ok(Timestamp { sec: 86_400, nsec: 0 }));
        assert_eq!(parse_moment("1969-12-31T23:59:59.25Z"), Ok(Timestamp { sec: -1, nsec: 250_000_000 }));
        assert!(parse_moment("yesterday").is_err());
        assert!(parse_moment("@1.0000000001").is_err());
    }

    #[test]
    fn times_out_of_every_calendar_are_numbers() {
        let far = Timestamp { sec: i64::MAX, nsec: 1 };
        assert_eq!(short_time(far), format!("@{}", i64::MAX));
        assert!(long_time(far).starts_with('@') && machine_time(far).starts_with('@'));
        assert_eq!(machine_time(Timestamp { sec: -1, nsec: 0 }), "1969-12-31T23:59:59Z");
    }
}
