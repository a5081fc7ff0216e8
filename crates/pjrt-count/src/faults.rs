//! Failures on demand: `execute:3` makes the third execution fail with RESOURCE_EXHAUSTED, `compile:1:INTERNAL` the
//! first compilation with INTERNAL. Kinds are those of [`Kind::name`]; a code is a name or a number. `finish` lets the
//! execution take place, so that its donated arguments are gone, before it fails.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use pjrt::Code;

use crate::counters::Kind;

struct Fault {
    /// Calls until the failure; 0 is disarmed.
    countdown: AtomicU64,
    code: AtomicU32,
}

static FAULTS: [Fault; 8] = [const { Fault { countdown: AtomicU64::new(0), code: AtomicU32::new(0) } }; 8];

pub(crate) fn arm(kind: Kind, nth: u64, code: Code) {
    let fault = &FAULTS[kind as usize];
    fault.code.store(code as u32, SeqCst);
    fault.countdown.store(nth, SeqCst);
}

/// Whether this call must fail, and with what.
pub(crate) fn strikes(kind: Kind) -> Option<Code> {
    let fault = &FAULTS[kind as usize];
    let before = fault.countdown.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).unwrap_or(0);
    (before == 1).then(|| Code::from_raw(fault.code.load(SeqCst)))
}

/// 0 stands for RESOURCE_EXHAUSTED; `None` if there is no such code.
pub(crate) fn code_or_default(raw: u32) -> Option<Code> {
    match raw {
        0 => Some(Code::ResourceExhausted),
        raw => Code::ALL.into_iter().find(|code| *code as u32 == raw),
    }
}

pub(crate) fn arm_from(text: &str) -> Result<(), String> {
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (kind, nth, code) = parse(part).ok_or_else(|| {
            format!("PJRT_COUNT_FAIL: {part:?} is not KIND:N or KIND:N:CODE (kinds: {})", kinds())
        })?;
        arm(kind, nth, code);
    }
    Ok(())
}

fn parse(part: &str) -> Option<(Kind, u64, Code)> {
    let mut words = part.split(':');
    let kind = Kind::from_name(words.next()?)?;
    let nth = words.next()?.parse().ok()?;
    let code = match words.next() {
        None => Code::ResourceExhausted,
        Some(word) => match word.parse::<u32>() {
            Ok(raw) => code_or_default(raw)?,
            Err(_) => Code::ALL.into_iter().find(|code| code.name().eq_ignore_ascii_case(word))?,
        },
    };
    words.next().is_none().then_some((kind, nth, code))
}

fn kinds() -> String {
    Kind::ALL.map(Kind::name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifications() {
        assert_eq!(parse("execute:3"), Some((Kind::Execute, 3, Code::ResourceExhausted)));
        assert_eq!(parse("compile:1:internal"), Some((Kind::Compile, 1, Code::Internal)));
        assert_eq!(parse("upload:1:14"), Some((Kind::Upload, 1, Code::Unavailable)));
        for wrong in ["", "execute", "run:1", "execute:x", "execute:1:NOPE", "execute:1:17", "execute:1:8:9"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_nth_call_fails_once() {
        arm(Kind::CopyToDevice, 2, Code::Internal);
        let struck: Vec<_> = (0..4).map(|_| strikes(Kind::CopyToDevice)).collect();
        assert_eq!(struck, [None, Some(Code::Internal), None, None]);
    }
}
