//! The reference reader and writer behind a pipe.
//!
//! Every message, in both directions, is a frame: a u32 length and that many bytes. All numbers
//! are little-endian; a string is a u32 length and UTF-8 bytes. `interop/README.md` describes the
//! messages of the two modes, `check` and `write`.

mod wire;

use safetensors::tensor::{Dtype, Metadata, TensorView};
use safetensors::{SafeTensorError, SafeTensors};
use std::collections::HashMap;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::process::ExitCode;
use wire::{put_str, put_u32, put_u64, read_frame, write_frame, Fields};

const DTYPES: [Dtype; 22] = [
    Dtype::BOOL,
    Dtype::F4,
    Dtype::F6_E2M3,
    Dtype::F6_E3M2,
    Dtype::U8,
    Dtype::I8,
    Dtype::F8_E5M2,
    Dtype::F8_E4M3,
    Dtype::F8_E8M0,
    Dtype::F8_E4M3FNUZ,
    Dtype::F8_E5M2FNUZ,
    Dtype::I16,
    Dtype::U16,
    Dtype::F16,
    Dtype::BF16,
    Dtype::I32,
    Dtype::U32,
    Dtype::F32,
    Dtype::C64,
    Dtype::F64,
    Dtype::I64,
    Dtype::U64,
];

const REFUSED: u8 = 0;
const ACCEPTED: u8 = 1;

fn main() -> ExitCode {
    let mode = std::env::args().nth(1).unwrap_or_default();
    let answer: fn(&[u8], &mut Vec<u8>) -> io::Result<()> = match mode.as_str() {
        "check" => check,
        "write" => write,
        _ => {
            eprintln!("usage: safetensors-reference check|write  (frames on standard input)");
            return ExitCode::from(2);
        }
    };
    match serve(io::stdin().lock(), io::stdout().lock(), answer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("safetensors-reference: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Answers frames until the input ends. The output is flushed whenever the input buffer runs dry,
/// so a caller may wait for one answer or send a thousand frames ahead.
fn serve(
    input: impl Read,
    output: impl Write,
    answer: fn(&[u8], &mut Vec<u8>) -> io::Result<()>,
) -> io::Result<()> {
    let mut input = BufReader::with_capacity(1 << 18, input);
    let mut output = BufWriter::with_capacity(1 << 18, output);
    let (mut frame, mut reply) = (Vec::new(), Vec::new());
    while read_frame(&mut input, &mut frame)? {
        reply.clear();
        answer(&frame, &mut reply)?;
        write_frame(&mut output, &reply)?;
        if input.buffer().is_empty() {
            output.flush()?;
        }
    }
    output.flush()
}

/// The frame is a whole file.
fn check(file: &[u8], reply: &mut Vec<u8>) -> io::Result<()> {
    match SafeTensors::deserialize(file) {
        Ok(_) => {
            reply.push(ACCEPTED);
            // The same header once more: only Metadata tells offsets and the metadata map.
            let (_, header) = SafeTensors::read_metadata(file).map_err(io::Error::other)?;
            describe(&header, reply);
        }
        Err(e) => {
            refuse(&e, reply);
            // The last check of all: the header itself was right.
            if let SafeTensorError::MetadataIncompleteBuffer = e {
                let n = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
                let header: Metadata = serde_json::from_slice(&file[8..8 + n])?;
                describe(&header, reply);
            }
        }
    }
    Ok(())
}

fn describe(header: &Metadata, reply: &mut Vec<u8>) {
    let names = header.offset_keys();
    put_u32(reply, names.len());
    for name in names {
        let info = header.info(&name).expect("a name of this header");
        put_str(reply, &name);
        put_str(reply, &info.dtype.to_string());
        put_u32(reply, info.shape.len());
        for &dimension in &info.shape {
            put_u64(reply, dimension);
        }
        put_u64(reply, info.data_offsets.0);
        put_u64(reply, info.data_offsets.1);
    }
    match header.metadata() {
        None => reply.push(0),
        Some(map) => {
            reply.push(1);
            let mut pairs: Vec<_> = map.iter().collect();
            pairs.sort();
            put_u32(reply, pairs.len());
            for (key, value) in pairs {
                put_str(reply, key);
                put_str(reply, value);
            }
        }
    }
}

/// The frame describes tensors; the accepted answer is the file that the crate writes for them.
fn write(description: &[u8], reply: &mut Vec<u8>) -> io::Result<()> {
    let mut fields = Fields::new(description);
    let metadata = match fields.byte()? {
        0 => None,
        _ => {
            let mut map = HashMap::new();
            for _ in 0..fields.u32()? {
                map.insert(fields.string()?.to_owned(), fields.string()?.to_owned());
            }
            Some(map)
        }
    };
    let mut tensors = Vec::new();
    for _ in 0..fields.u32()? {
        let name = fields.string()?;
        let dtype = parse_dtype(fields.string()?)?;
        let mut shape = Vec::new();
        for _ in 0..fields.u32()? {
            shape.push(fields.size()?);
        }
        match TensorView::new(dtype, shape, fields.bytes()?) {
            Ok(view) => tensors.push((name, view)),
            Err(e) => {
                refuse(&e, reply);
                return Ok(());
            }
        }
    }
    fields.end()?;
    match safetensors::serialize(tensors, metadata) {
        Ok(file) => {
            reply.push(ACCEPTED);
            reply.extend(file);
        }
        Err(e) => refuse(&e, reply),
    }
    Ok(())
}

fn refuse(e: &SafeTensorError, reply: &mut Vec<u8>) {
    reply.push(REFUSED);
    put_str(reply, variant(e));
    put_str(reply, &e.to_string());
}

fn variant(e: &SafeTensorError) -> &'static str {
    use SafeTensorError::*;
    match e {
        InvalidHeader(_) => "InvalidHeader",
        InvalidHeaderDeserialization(_) => "InvalidHeaderDeserialization",
        HeaderTooLarge => "HeaderTooLarge",
        HeaderTooSmall => "HeaderTooSmall",
        InvalidHeaderLength => "InvalidHeaderLength",
        TensorNotFound(_) => "TensorNotFound",
        TensorInvalidInfo => "TensorInvalidInfo",
        InvalidOffset(_) => "InvalidOffset",
        IoError(_) => "IoError",
        JsonError(_) => "JsonError",
        InvalidTensorView(..) => "InvalidTensorView",
        MetadataIncompleteBuffer => "MetadataIncompleteBuffer",
        ValidationOverflow => "ValidationOverflow",
        MisalignedSlice => "MisalignedSlice",
    }
}

fn parse_dtype(name: &str) -> io::Result<Dtype> {
    DTYPES
        .into_iter()
        .find(|d| d.to_string() == name)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("dtype {name:?}")))
}
