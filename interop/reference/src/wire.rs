//! Frames and their fields.

use std::io::{self, ErrorKind, Read, Write};

/// Reads the next frame into `frame`; false where the input ends before one.
pub fn read_frame(input: &mut impl Read, frame: &mut Vec<u8>) -> io::Result<bool> {
    let mut length = [0; 4];
    let mut have = 0;
    while have < length.len() {
        match input.read(&mut length[have..]) {
            Ok(0) if have == 0 => return Ok(false),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => have += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    frame.resize(u32::from_le_bytes(length) as usize, 0);
    input.read_exact(frame)?;
    Ok(true)
}

pub fn write_frame(output: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len())
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "answer over 4 GiB"))?;
    output.write_all(&length.to_le_bytes())?;
    output.write_all(frame)
}

pub fn put_u32(out: &mut Vec<u8>, n: usize) {
    let n = u32::try_from(n).expect("a count below 2^32");
    out.extend(n.to_le_bytes());
}

pub fn put_u64(out: &mut Vec<u8>, n: usize) {
    out.extend((n as u64).to_le_bytes());
}

pub fn put_str(out: &mut Vec<u8>, s: &str) {
    put_u32(out, s.len());
    out.extend(s.as_bytes());
}

/// The fields of one frame, front to back.
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn new(frame: &'a [u8]) -> Self {
        Self { rest: frame }
    }

    fn take(&mut self, n: usize) -> io::Result<&'a [u8]> {
        let (head, rest) = self
            .rest
            .split_at_checked(n)
            .ok_or_else(|| io::Error::new(ErrorKind::UnexpectedEof, "a field past its frame"))?;
        self.rest = rest;
        Ok(head)
    }

    pub fn byte(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub fn u32(&mut self) -> io::Result<usize> {
        let bytes = self.take(4)?.try_into().expect("four bytes");
        Ok(u32::from_le_bytes(bytes) as usize)
    }

    pub fn size(&mut self) -> io::Result<usize> {
        let bytes = self.take(8)?.try_into().expect("eight bytes");
        usize::try_from(u64::from_le_bytes(bytes))
            .map_err(|e| io::Error::new(ErrorKind::InvalidData, e))
    }

    pub fn bytes(&mut self) -> io::Result<&'a [u8]> {
        let n = self.u32()?;
        self.take(n)
    }

    pub fn string(&mut self) -> io::Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|e| io::Error::new(ErrorKind::InvalidData, e))
    }

    pub fn end(&self) -> io::Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            n => Err(io::Error::new(
                ErrorKind::InvalidData,
                format!("{n} bytes after the last field"),
            )),
        }
    }
}
