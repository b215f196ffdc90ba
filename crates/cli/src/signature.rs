//! What a device holds, by the marks that formats leave.

use onggi_block_device::{BlockDevice, DeviceError};

/// Where a format writes its mark.
struct Mark {
    name: &'static str,
    offset: usize,
    bytes: &'static [u8],
}

const MARKS: [Mark; 13] = [
    Mark { name: "an ext2, ext3 or ext4 volume", offset: 0x438, bytes: &[0x53, 0xef] },
    Mark { name: "an F2FS volume", offset: 0x400, bytes: &[0x10, 0x20, 0xf5, 0xf2] },
    Mark { name: "a btrfs volume", offset: 0x1_0040, bytes: b"_BHRfS_M" },
    Mark { name: "an XFS volume", offset: 0, bytes: b"XFSB" },
    Mark { name: "a NILFS2 volume", offset: 0x406, bytes: &[0x34, 0x34] },
    Mark { name: "a squashfs image", offset: 0, bytes: b"hsqs" },
    Mark { name: "an NTFS volume", offset: 3, bytes: b"NTFS    " },
    Mark { name: "an exFAT volume", offset: 3, bytes: b"EXFAT   " },
    Mark { name: "a FAT volume", offset: 82, bytes: b"FAT32   " },
    Mark { name: "an encrypted volume (LUKS)", offset: 0, bytes: b"LUKS\xba\xbe" },
    Mark { name: "an ISO 9660 image", offset: 0x8001, bytes: b"CD001" },
    Mark { name: "swap space", offset: 4086, bytes: b"SWAPSPACE2" },
    Mark { name: "a partition table (GPT)", offset: 512, bytes: b"EFI PART" },
];

/// Bytes that hold all marks.
const LOOKED_AT: u64 = 0x1_1000;

/// What is there, in words; `None` for nothing known.
pub(crate) fn find(device: &dyn BlockDevice) -> Result<Option<&'static str>, DeviceError> {
    let sector = u64::from(device.attributes().logical_sector);
    let len = LOOKED_AT.next_multiple_of(sector).min(device.attributes().size / sector * sector);
    let mut head = vec![0; usize::try_from(len).expect("68 KiB")];
    device.read_at(0, &mut head)?;
    let there = |mark: &&Mark| head.get(mark.offset..).is_some_and(|rest| rest.starts_with(mark.bytes));
    Ok(MARKS.iter().find(there).map(|mark| mark.name))
}

#[cfg(test)]
mod tests {
    use onggi_block_device::MemoryDevice;

    use super::*;

    #[test]
    fn marks_are_seen() {
        for mark in MARKS {
            let mut image = vec![0; 1 << 20];
            image[mark.offset..mark.offset + mark.bytes.len()].copy_from_slice(mark.bytes);
            assert_eq!(find(&MemoryDevice::from_bytes(&image)).unwrap(), Some(mark.name));
        }
        assert_eq!(find(&MemoryDevice::new(1 << 20)).unwrap(), None);
        assert_eq!(find(&MemoryDevice::new(512)).unwrap(), None, "shorter than where marks are");
    }
}
