//! Patterns of names: `*`, `?`, `[a-z]`, `[!a-z]` and `\`, as the shell has them.

/// Whether a name matches a pattern, all of it. Takes time in proportion to the product of the lengths.
pub(crate) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where the last star was, and how much of the name it has swallowed.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, n));
            p += 1;
            continue;
        }
        if n == name.len() && p == pattern.len() {
            return true;
        }
        if n < name.len()
            && let Some(next) = step(pattern, p, name[n])
        {
            p = next;
            n += 1;
            continue;
        }
        match star {
            Some((at, swallowed)) if swallowed < name.len() => {
                star = Some((at, swallowed + 1));
                p = at + 1;
                n = swallowed + 1;
            }
            _ => return false,
        }
    }
}

/// Matches one byte by the pattern's element at `p`; says where the next element begins.
fn step(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        b'[' => match set(pattern, p, byte) {
            Some((true, next)) => Some(next),
            Some((false, _)) => None,
            // Never closed: an ordinary bracket.
            None => (byte == b'[').then_some(p + 1),
        },
        literal => (literal == byte).then_some(p + 1),
    }
}

/// Whether a byte is in the set that opens at `p`, and where the set ends; `None` where it does not.
fn set(pattern: &[u8], p: usize, byte: u8) -> Option<(bool, usize)> {
    let mut at = p + 1;
    let negated = matches!(pattern.get(at)?, b'!' | b'^');
    at += usize::from(negated);
    let (start, mut inside) = (at, false);
    loop {
        let low = *pattern.get(at)?;
        if low == b']' && at > start {
            return Some((inside != negated, at + 1));
        }
        if pattern.get(at + 1) == Some(&b'-') && pattern.get(at + 2).is_some_and(|&high| high != b']') {
            inside |= (low..=pattern[at + 2]).contains(&byte);
            at += 3;
        } else {
            inside |= low == byte;
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_patterns() {
        for (pattern, name, expected) in [
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("*", "", true),
            ("*.so*", "libc.so.6", true),
            ("*.so", "libc.so.6", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]", "]", true),
            ("[a-]", "-", true),
            ("[abc", "[abc", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("a**b", "ab", true),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxbxx", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        assert!(!matches(&b"*a".repeat(100), &b"a".repeat(99)));
        assert!(!matches(&[b"*a".repeat(50), b"b".to_vec()].concat(), &b"a".repeat(255)));
    }
}
