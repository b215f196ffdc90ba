//! Access control lists: the form that system calls use (version 2, every entry with an id) and the
//! volume's (version 1, an id only in entries for a named user or group).

const CALL_VERSION: u32 = 2;
const DISK_VERSION: u32 = 1;
const HEADER: usize = 4;
const LONG: usize = 8;
const SHORT: usize = 4;
/// The id of entries that name nobody, in the form of system calls.
const NOBODY: u32 = u32::MAX;

/// The rule that a list breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AclError {
    #[error("a list of {0} bytes is cut short")]
    Length(usize),
    #[error("its version is {0}")]
    Version(u32),
    #[error("tag {0:#x} means nothing")]
    Tag(u16),
    #[error("permissions {0:#o} are more than read, write and execute")]
    Permissions(u16),
}

/// Whether entries with this tag have an id.
fn has_id(tag: u16) -> Result<bool, AclError> {
    match tag {
        0x02 | 0x08 => Ok(true),
        0x01 | 0x04 | 0x10 | 0x20 => Ok(false),
        _ => Err(AclError::Tag(tag)),
    }
}

fn word(bytes: &[u8], at: usize) -> Result<u32, AclError> {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    four.map(u32::from_le_bytes).ok_or(AclError::Length(bytes.len()))
}

/// Tag and permissions of the entry at `at`.
fn head(bytes: &[u8], at: usize) -> Result<(u16, u16), AclError> {
    let both = word(bytes, at)?;
    Ok((both as u16, (both >> 16) as u16))
}

fn check_version(bytes: &[u8], expected: u32) -> Result<(), AclError> {
    let version = word(bytes, 0)?;
    if version == expected { Ok(()) } else { Err(AclError::Version(version)) }
}

/// From the form of system calls to the volume's.
pub(super) fn to_disk(call: &[u8]) -> Result<Vec<u8>, AclError> {
    check_version(call, CALL_VERSION)?;
    let mut disk = DISK_VERSION.to_le_bytes().to_vec();
    let mut at = HEADER;
    while at < call.len() {
        let (tag, permissions) = head(call, at)?;
        let id = word(call, at + 4)?;
        if permissions > 7 {
            return Err(AclError::Permissions(permissions));
        }
        disk.extend_from_slice(&call[at..at + 4]);
        if has_id(tag)? {
            disk.extend_from_slice(&id.to_le_bytes());
        }
        at += LONG;
    }
    Ok(disk)
}

/// From the volume's form to that of system calls.
pub(super) fn from_disk(disk: &[u8]) -> Result<Vec<u8>, AclError> {
    check_version(disk, DISK_VERSION)?;
    let mut call = CALL_VERSION.to_le_bytes().to_vec();
    let mut at = HEADER;
    while at < disk.len() {
        let (tag, _) = head(disk, at)?;
        let (id, len) = if has_id(tag)? { (word(disk, at + 4)?, LONG) } else { (NOBODY, SHORT) };
        call.extend_from_slice(&disk[at..at + 4]);
        call.extend_from_slice(&id.to_le_bytes());
        at += len;
    }
    Ok(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call_form(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&permissions.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn goes_to_the_volume_and_back() {
        let call = call_form(&[
            (1, 6, NOBODY),
            (2, 7, 1000),
            (4, 4, NOBODY),
            (8, 5, 50),
            (0x10, 7, NOBODY),
            (0x20, 0, NOBODY),
        ]);
        let disk = to_disk(&call).unwrap();
        assert_eq!(disk.len(), 4 + 4 * 4 + 2 * 8);
        assert_eq!(&disk[..12], &[1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 7, 0]);
        assert_eq!(from_disk(&disk).unwrap(), call);
    }

    #[test]
    fn refuses_what_is_no_list() {
        assert_eq!(to_disk(b"ab"), Err(AclError::Length(2)));
        assert_eq!(to_disk(&1u32.to_le_bytes()), Err(AclError::Version(1)));
        assert_eq!(to_disk(&call_form(&[(3, 0, 0)])), Err(AclError::Tag(3)));
        assert_eq!(to_disk(&call_form(&[(1, 8, 0)])), Err(AclError::Permissions(8)));
        let mut cut = call_form(&[(2, 7, 1)]);
        cut.pop();
        assert_eq!(to_disk(&cut), Err(AclError::Length(11)));
        assert_eq!(from_disk(&[1, 0, 0, 0, 2, 0, 7, 0]), Err(AclError::Length(8)));
    }
}
