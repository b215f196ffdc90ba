//! Access control lists in the form of system calls, and the permission bits that they stand for.
//!
//! A list's entries for the owner, for the mask (without one, for the owning group) and for others are
//! the permission bits: a change of either is a change of both (acl(5)).

/// The attribute that holds the list of who may use a file.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";

const HEADER: usize = 4;
const ENTRY: usize = 8;
const OWNER: u16 = 0x01;
const GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// The nine permission bits of a list; `None` where it lacks one of the entries.
pub(crate) fn permissions(list: &[u8]) -> Option<u16> {
    let of = |wanted: u16| {
        let mut entries = list.get(HEADER..)?.chunks_exact(ENTRY);
        let entry = entries.find(|entry| entry[..2] == wanted.to_le_bytes())?;
        Some(u16::from_le_bytes([entry[2], entry[3]]) & 7)
    };
    Some(of(OWNER)? << 6 | of(MASK).or_else(|| of(GROUP))? << 3 | of(OTHERS)?)
}

/// The list with these permission bits.
pub(crate) fn with_permissions(list: &[u8], perm: u16) -> Vec<u8> {
    let mut list = list.to_vec();
    let entries = list.get_mut(HEADER..).unwrap_or_default();
    let tag = |entry: &[u8]| u16::from_le_bytes([entry[0], entry[1]]);
    let middle = if entries.chunks_exact(ENTRY).any(|entry| tag(entry) == MASK) { MASK } else { GROUP };
    for entry in entries.chunks_exact_mut(ENTRY) {
        let shift = match tag(entry) {
            OWNER => 6,
            found if found == middle => 3,
            OTHERS => 0,
            _ => continue,
        };
        entry[2..4].copy_from_slice(&(perm >> shift & 7).to_le_bytes());
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16)]) -> Vec<u8> {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, permissions) in entries {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&permissions.to_le_bytes());
            bytes.extend_from_slice(&u32::MAX.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn lists_and_bits_go_together() {
        let masked = list(&[(OWNER, 6), (2, 7), (GROUP, 4), (MASK, 5), (OTHERS, 1)]);
        assert_eq!(permissions(&masked), Some(0o651));
        let changed = list(&[(OWNER, 7), (2, 7), (GROUP, 4), (MASK, 0), (OTHERS, 2)]);
        assert_eq!(with_permissions(&masked, 0o4702), changed);
        let small = list(&[(OWNER, 6), (GROUP, 4), (OTHERS, 0)]);
        assert_eq!(permissions(&small), Some(0o640));
        assert_eq!(permissions(&with_permissions(&small, 0o751)), Some(0o751));
        for broken in [&b""[..], b"\x02\0\0\0", &small[..20]] {
            assert_eq!(permissions(broken), None);
            assert_eq!(with_permissions(broken, 0o777).len(), broken.len());
        }
    }
}
