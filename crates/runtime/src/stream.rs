//! Streams and events: host-side queues over buffer dependencies.
//!
//! PJRT orders executions by the buffers they share, so waiting for another stream needs no device work. What a stream
//! keeps is the completion events of its executions that are still running, so that `synchronize`, `query` and timing
//! tell the truth.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex, RwLock};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::origin::Origin;
use crate::wait;

struct InFlight {
    done: Arc<pjrt::Event>,
    origin: Origin,
}

#[derive(Default)]
pub struct Stream {
    in_flight: Mutex<VecDeque<InFlight>>,
}

/// The streams of one device; index 0 is the default stream.
#[derive(Default)]
pub struct Streams {
    default: Stream,
    others: RwLock<Vec<Arc<Stream>>>,
}

/// Completed entries examined per submission.
const PRUNED: usize = 4;

impl Stream {
    /// Takes the completion event of an execution. An error that is known already is returned.
    pub fn submitted(&self, done: pjrt::Event, origin: Origin) -> Result<()> {
        if done.is_ready() {
            return outcome(&done, origin);
        }
        let mut in_flight = self.in_flight.lock();
        for _ in 0..PRUNED {
            // Failures stay for synchronize to report.
            match in_flight.front() {
                Some(front) if front.done.is_ready() && front.done.error().is_none() => in_flight.pop_front(),
                _ => break,
            };
        }
        in_flight.push_back(InFlight { done: Arc::new(done), origin });
        Ok(())
    }

    pub fn is_idle(&self) -> bool {
        self.in_flight.lock().iter().all(|entry| entry.done.is_ready())
    }

    pub fn synchronize(&self) -> Result<()> {
        let mut first = Ok(());
        loop {
            let Some(entry) = self.in_flight.lock().pop_front() else { return first };
            let finished = wait::event(&entry.done);
            let outcome = match finished {
                Err(interrupted) => {
                    self.in_flight.lock().push_front(entry);
                    return Err(interrupted);
                }
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(failed(error, entry.origin)),
            };
            if first.is_ok() {
                first = outcome;
            }
        }
    }

    fn pending(&self) -> Vec<Arc<pjrt::Event>> {
        self.in_flight.lock().iter().filter(|entry| !entry.done.is_ready()).map(|e| e.done.clone()).collect()
    }
}

fn outcome(done: &pjrt::Event, origin: Origin) -> Result<()> {
    done.error().map_or(Ok(()), |error| Err(failed(error, origin)))
}

fn failed(error: pjrt::Error, origin: Origin) -> Error {
    let op = crate::operator::name(origin.op).to_owned();
    Error::Asynchronous { origin, source: Arc::new(Error::Execute { op, source: Arc::new(error) }) }
}

impl Streams {
    pub fn create(&self) -> i64 {
        let mut others = self.others.write();
        others.push(Arc::default());
        others.len() as i64
    }

    pub fn with<T>(&self, id: i64, f: impl FnOnce(&Stream) -> T) -> Result<T> {
        if id == 0 {
            return Ok(f(&self.default));
        }
        let stream = self.others.read().get((id - 1).max(0) as usize).cloned();
        let stream = stream.ok_or_else(|| Error::Value(format!("there is no stream {id} on this device")))?;
        Ok(f(&stream))
    }

    pub fn synchronize_all(&self) -> Result<()> {
        let mut first = self.default.synchronize();
        if matches!(first, Err(Error::Interrupted)) {
            return first;
        }
        let others = self.others.read().clone();
        for stream in others {
            let outcome = stream.synchronize();
            if first.is_ok() {
                first = outcome;
            }
        }
        first
    }
}

thread_local! {
    /// Current stream per device.
    static CURRENT: RefCell<Vec<i64>> = const { RefCell::new(Vec::new()) };
}

pub fn current(device: usize) -> i64 {
    CURRENT.with_borrow(|current| current.get(device).copied().unwrap_or(0))
}

/// Makes `stream` current on `device` for this thread; returns the previous one.
pub fn exchange(device: usize, stream: i64) -> i64 {
    CURRENT.with_borrow_mut(|current| {
        if current.len() <= device {
            current.resize(device + 1, 0);
        }
        std::mem::replace(&mut current[device], stream)
    })
}

/// A point in a stream.
pub struct Event {
    state: Arc<EventState>,
    timing: bool,
}

struct EventState {
    progress: Mutex<Progress>,
    finished: Condvar,
}

struct Progress {
    remaining: usize,
    at: Option<Instant>,
}

impl Event {
    /// Captures what `stream` has been given so far.
    pub fn record(device: &'static Device, stream: i64, timing: bool) -> Result<Event> {
        let pending = device.streams().with(stream, Stream::pending)?;
        let at = pending.is_empty().then(Instant::now);
        let state = Arc::new(EventState {
            progress: Mutex::new(Progress { remaining: pending.len(), at }),
            finished: Condvar::new(),
        });
        for event in pending {
            let state = state.clone();
            event.on_ready(move |_| state.one_done());
        }
        Ok(Event { state, timing })
    }

    pub fn is_done(&self) -> bool {
        self.state.progress.lock().remaining == 0
    }

    pub fn synchronize(&self) -> Result<()> {
        if self.is_done() {
            return Ok(());
        }
        crate::device::check_fork()?;
        wait::without_host_lock(|| {
            let mut progress = self.state.progress.lock();
            while progress.remaining > 0 {
                wait::wait_on(&self.state.finished, &mut progress)?;
            }
            Ok(())
        })
    }

    /// Milliseconds from `self` to `end`.
    pub fn elapsed(&self, end: &Event) -> Result<f64> {
        if !self.timing || !end.timing {
            return Err(Error::Value("both events must be created with enable_timing=True".to_owned()));
        }
        let start = self.state.progress.lock().at;
        let finish = end.state.progress.lock().at;
        match (start, finish) {
            (Some(start), Some(finish)) if finish >= start => Ok((finish - start).as_secs_f64() * 1e3),
            (Some(start), Some(finish)) => Ok(-((start - finish).as_secs_f64() * 1e3)),
            _ => Err(Error::Value("both events must have completed before elapsed_time is asked".to_owned())),
        }
    }
}

impl EventState {
    fn one_done(&self) {
        let mut progress = self.progress.lock();
        progress.remaining -= 1;
        if progress.remaining == 0 {
            progress.at = Some(Instant::now());
            self.finished.notify_all();
        }
    }
}

/// Whether the current stream may have executions that still run.
pub fn is_busy(device: &'static Device) -> bool {
    let is_busy = |stream: &Stream| !stream.in_flight.lock().is_empty();
    device.streams().with(current(device.index()), is_busy).unwrap_or(true)
}

/// The stream that new work of this thread goes to.
pub fn submit(device: &'static Device, done: pjrt::Event, origin: Origin) -> Result<()> {
    device.streams().with(current(device.index()), |stream| stream.submitted(done, origin))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator;
    use crate::origin::Site;
    use crate::schema::Schema;

    fn failure() -> pjrt::Event {
        pjrt::Event::done(Err(pjrt::Error::Api {
            method: "PJRT_LoadedExecutable_Execute",
            code: pjrt::Code::Internal,
            message: "the chip is on fire".to_owned(),
        }))
    }

    #[test]
    fn an_execution_that_fails_names_its_operator() {
        let schema = Schema::parse("aten::mul.Tensor(Tensor self, Tensor other) -> Tensor").unwrap();
        let origin = Origin { op: operator::intern(schema, None, false).id, site: Site(0) };
        let stream = Stream::default();
        let error = stream.submitted(failure(), origin).unwrap_err();
        assert_eq!(
            error.to_string(),
            "aten::mul.Tensor: execution failed: PJRT_LoadedExecutable_Execute failed: INTERNAL: the chip is on fire"
        );
        // One that is found out later is raised once, by whoever waits for the stream.
        stream.in_flight.lock().push_back(InFlight { done: Arc::new(failure()), origin });
        stream.in_flight.lock().push_back(InFlight { done: Arc::new(pjrt::Event::done(Ok(()))), origin });
        assert!(stream.is_idle());
        assert!(matches!(stream.synchronize(), Err(Error::Asynchronous { .. })));
        assert!(stream.synchronize().is_ok());
    }
}
