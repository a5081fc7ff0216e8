//! A signature in a form that other processes understand: the key of a plan on disk.

use std::fmt::Write;

use crate::call::Call;
use crate::disk::Hash;
use crate::layout;
use crate::signature::Signature;
use crate::storage::Contents;

/// Interned numbers are replaced by what they stand for; the rest of the signature is taken as it is.
pub fn key(call: &Call, signature: &Signature) -> Hash {
    let mut text = String::new();
    let _ = write!(
        text,
        "{} {} {:x} {} ",
        call.op.name,
        call.op.functional,
        call.modes.0,
        call.op.numbers_are_attributes()
    );
    for bound in &signature.storages {
        let _ = match &bound.contents {
            Contents::Buffer(held) => write!(text, "{:?} ", layout::get(held.layout)),
            Contents::Empty(Some(id)) => write!(text, "empty {:?} ", layout::get(*id)),
            Contents::Empty(None) => write!(text, "empty {} ", bound.storage.nbytes()),
            Contents::Failed(_) => write!(text, "failed "),
        };
    }
    // Whether views start at operands shows in how many there are; variants and constants are words of the signature.
    let _ = write!(text, "{} {} ", signature.starts.len(), signature.hosts.len());
    let mut hasher = blake3::Hasher::new();
    hasher.update(text.as_bytes());
    for word in portable_words(signature) {
        hasher.update(&word.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// The words without the operator's number and the layouts' numbers, which differ between processes.
fn portable_words(signature: &Signature) -> Vec<u64> {
    let mut words = signature.words.to_vec();
    words[0] = 0;
    for &position in &signature.layout_words {
        words[position] = 0;
    }
    words
}
