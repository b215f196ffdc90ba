//! Where something is: on the host, or in a volume as `IMAGE:/path`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// A place named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A path of the host.
    Host(PathBuf),
    /// A path in a volume.
    Image(ImagePath),
}

/// A path in a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImagePath {
    /// The image, as written.
    pub(crate) image: OsString,
    /// The path, from the root on: it begins with a slash.
    pub(crate) path: Vec<u8>,
}

impl Place {
    /// Splits at the first `:/` that has something before it and is not the `://` of an address.
    pub(crate) fn parse(text: &OsStr) -> Self {
        let bytes = text.as_bytes();
        let mut at = 1;
        while let Some(found) = bytes.get(at..).and_then(|rest| rest.windows(2).position(|two| two == b":/"))
        {
            let colon = at + found;
            let address = bytes.get(colon + 2) == Some(&b'/')
                && bytes[..colon].iter().all(|byte| byte.is_ascii_lowercase() || *byte == b'+');
            if !address {
                return Self::Image(ImagePath {
                    image: OsStr::from_bytes(&bytes[..colon]).to_owned(),
                    path: bytes[colon + 1..].to_vec(),
                });
            }
            at = colon + 1;
        }
        Self::Host(PathBuf::from(text))
    }
}

impl ImagePath {
    /// A place in a volume; text without a path is a volume's root.
    pub(crate) fn parse(text: &OsStr) -> Self {
        match Place::parse(text) {
            Place::Image(place) => place,
            Place::Host(image) => Self { image: image.into_os_string(), path: b"/".to_vec() },
        }
    }

    /// A place that must name its path.
    pub(crate) fn parse_full(text: &OsStr) -> anyhow::Result<Self> {
        match Place::parse(text) {
            Place::Image(place) => Ok(place),
            Place::Host(path) => Err(anyhow::anyhow!("{}: expected IMAGE:/path", path.display())),
        }
    }

    /// The last component: `None` for the root and where it is `.` or `..`.
    pub(crate) fn file_name(&self) -> Option<&[u8]> {
        last_name(&self.path)
    }

    /// The place `name` below this one.
    pub(crate) fn join(&self, name: &[u8]) -> Self {
        Self { image: self.image.clone(), path: join(&self.path, name) }
    }

    /// As written: bytes of any kind.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.image.clone().into_vec();
        bytes.push(b':');
        bytes.extend_from_slice(&self.path);
        bytes
    }
}

impl std::fmt::Display for ImagePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&shown(&self.to_bytes()))
    }
}

/// The last component of a path; `None` where there is none to make a new name of.
pub(crate) fn last_name(path: &[u8]) -> Option<&[u8]> {
    let last = path.split(|&byte| byte == b'/').rfind(|part| !part.is_empty())?;
    (last != b"." && last != b"..").then_some(last)
}

/// `name` below `path`, with one slash between.
pub(crate) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut joined = path.to_vec();
    if !joined.ends_with(b"/") {
        joined.push(b'/');
    }
    joined.extend_from_slice(name);
    joined
}

/// Bytes as text that cannot drive a terminal: what is not printable is escaped.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() { text.extend(c.escape_default()) } else { text.push(c) }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(text: &str) -> Option<(String, String)> {
        match Place::parse(OsStr::new(text)) {
            Place::Host(path) => {
                assert_eq!(path.to_str(), Some(text));
                None
            }
            Place::Image(place) => {
                Some((place.image.into_string().unwrap(), String::from_utf8(place.path).unwrap()))
            }
        }
    }

    #[test]
    fn places_are_told_apart() {
        let some = |image: &str, path: &str| Some((image.to_owned(), path.to_owned()));
        assert_eq!(image("disk.img:/"), some("disk.img", "/"));
        assert_eq!(image("disk.img:/a/b"), some("disk.img", "/a/b"));
        assert_eq!(image("/x/disk.img:/a:/b"), some("/x/disk.img", "/a:/b"));
        assert_eq!(image("nbd://host/export:/a"), some("nbd://host/export", "/a"));
        assert_eq!(image("disk.img://a"), some("disk.img", "//a"));
        assert_eq!(image("disk.img"), None);
        assert_eq!(image(":/a"), None);
        assert_eq!(image("a:b"), None);
        assert_eq!(image(""), None);
        assert_eq!(image(":"), None);
    }

    #[test]
    fn last_names() {
        assert_eq!(last_name(b"/a/b/"), Some(&b"b"[..]));
        assert_eq!(last_name(b"x"), Some(&b"x"[..]));
        for path in [&b"/"[..], b"", b"/a/.", b"..", b"//"] {
            assert_eq!(last_name(path), None);
        }
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/a", b"b"), b"/a/b");
    }

    #[test]
    fn what_drives_a_terminal_is_escaped() {
        assert_eq!(shown(b"a\x1b[31m\n\xffz"), "a\\u{1b}[31m\\n\\xffz");
        assert_eq!(shown("kimchi 김치".as_bytes()), "kimchi 김치");
    }
}
