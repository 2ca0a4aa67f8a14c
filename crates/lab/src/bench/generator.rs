//! One thread of the generator: its connections, its clients, and what they count.

use std::{
    cell::{Cell, RefCell},
    mem,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    runtime::Builder,
    sync::{Mutex, mpsc, oneshot, watch},
    task::{JoinSet, LocalSet},
    time::{sleep, sleep_until, timeout_at},
};
use tonic::Status;

use super::{
    BenchError, Load, Operation,
    connection::Connection,
    host::{Alarm, thread_cpu},
    report::FirstError,
    requests::{Request, Requests, Values, thread_seed},
    schedule::Schedule,
    tally::{Kind, Tally},
    target::Target,
};

/// In a closed loop, a client whose requests fail at once waits before the next, so that the generator does
/// not spin while a server is absent. The wait doubles with each failure in a row.
const BACKOFF_MIN: Duration = Duration::from_millis(1);
const BACKOFF_DOUBLINGS_MAX: u32 = 8;

/// The work of a thread.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) thread: usize,
    pub(super) threads: usize,
    pub(super) operation: Operation,
    pub(super) load: Load,
    pub(super) values: Values,
    /// The servers to connect to, each with the number of clients that share the connection.
    pub(super) connections: Vec<(Target, usize)>,
    /// Requests a second that are due for this thread, in an open loop.
    pub(super) rate: Option<f64>,
}

/// What threads share.
#[derive(Clone, Debug)]
pub(super) struct Controls {
    /// If true, no further request is sent, and the outstanding ones are waited for.
    pub(super) stop: Arc<AtomicBool>,
    /// If true, outstanding requests are not waited for either.
    pub(super) abort: watch::Receiver<bool>,
    /// Requests sent in the window, counted if `--total` ends the run.
    pub(super) sent: Arc<AtomicU64>,
}

/// The times of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// When the first request is sent.
    pub(super) start: Instant,
    /// When the warm-up is over.
    pub(super) window: Instant,
    /// When the last request is due, if time ends the run.
    pub(super) end: Option<Instant>,
}

/// A message of a thread to the collecting task.
#[derive(Debug)]
pub(super) enum Event {
    /// Its connections are established.
    Ready,
    /// It cannot run.
    Failed(BenchError),
    /// Its counts of an interval of the window, or of a part of the warm-up (`None`).
    Interval { thread: usize, interval: Option<u64>, tally: Tally },
    /// Its clients are done. The tally has the counts since the last interval.
    Done { thread: usize, interval: Option<u64>, tally: Tally, last: Last },
}

/// A thread's final figures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Last {
    /// When its last request was answered or failed.
    pub(super) answer: Option<Instant>,
    /// CPU time since the start of the window.
    pub(super) cpu: Duration,
    /// Requests that were due and had no answer.
    pub(super) unfinished: u64,
}

/// Runs a thread of the generator. `start` brings the clock once all threads are ready.
pub(super) fn run(
    plan: Plan,
    controls: Controls,
    events: mpsc::Sender<Event>,
    start: oneshot::Receiver<Clock>,
) {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            // If the receiver is gone, the run is over.
            let _ = events.blocking_send(Event::Failed(BenchError::Thread(error.to_string())));
            return;
        }
    };
    LocalSet::new().block_on(&runtime, async {
        if let Err(error) = drive(plan, controls, &events, start).await {
            let _ = events.send(Event::Failed(error)).await;
        }
    });
}

async fn drive(
    plan: Plan,
    mut controls: Controls,
    events: &mpsc::Sender<Event>,
    start: oneshot::Receiver<Clock>,
) -> Result<(), BenchError> {
    let mut connections = Vec::new();
    for (target, clients) in &plan.connections {
        connections.push((Connection::open(target.clone()).await?, *clients));
    }
    let open = match plan.rate {
        Some(rate) => Some(Mutex::new(OpenLoop::new(&plan, rate)?)),
        None => None,
    };
    let _ = events.send(Event::Ready).await;
    // If the sender is gone, another thread could not start, and nothing waits for this one.
    let Ok(clock) = start.await else { return Ok(()) };

    let thread = Rc::new(Thread {
        clock,
        stop: controls.stop.clone(),
        sent: controls.sent.clone(),
        total: plan.load.total,
        timeout: plan.load.timeout,
        open,
        requests: RefCell::new(Requests::new(
            plan.operation,
            &plan.load,
            plan.values.clone(),
            plan.thread,
            plan.threads,
        )),
        tally: RefCell::default(),
        under_way: Cell::new(0),
        last_answer: Cell::new(None),
    });
    let mut clients = JoinSet::new();
    for (connection, count) in connections {
        for _ in 0..count {
            clients.spawn_local(client(thread.clone(), connection.clone()));
        }
    }

    let interval_now = if clock.start < clock.window { None } else { Some(0) };
    let mut ticks = Ticks { clock, interval: plan.load.interval, interval_now };
    let mut cpu_before = thread_cpu();
    loop {
        tokio::select! {
            () = sleep_until(ticks.next().into()) => {
                let interval = ticks.advance();
                let tally = mem::take(&mut *thread.tally.borrow_mut());
                if interval.is_none() {
                    cpu_before = thread_cpu();
                }
                let _ = events.send(Event::Interval { thread: plan.thread, interval, tally }).await;
            }
            joined = clients.join_next() => match joined {
                Some(Ok(())) => {}
                Some(Err(error)) => return Err(BenchError::Thread(error.to_string())),
                None => break,
            },
            _ = controls.abort.wait_for(|abort| *abort) => break,
        }
    }
    let mut unfinished = thread.under_way.get();
    // Only after this has the client that waits for the next request released the timetable.
    clients.shutdown().await;
    unfinished += thread.overdue();
    let cpu = thread_cpu().saturating_sub(cpu_before);
    let tally = mem::take(&mut *thread.tally.borrow_mut());
    let last = Last { answer: thread.last_answer.get(), cpu, unfinished };
    let _ = events.send(Event::Done { thread: plan.thread, interval: ticks.interval_now, tally, last }).await;
    Ok(())
}

/// When a thread hands over its counts. The runtime's timers may be late by a millisecond or two: answers in
/// that time are shown in the interval before, but counted in the window to which they belong.
#[derive(Debug)]
struct Ticks {
    clock: Clock,
    interval: Duration,
    /// The present interval of the window; `None` during the warm-up.
    interval_now: Option<u64>,
}

impl Ticks {
    fn next(&self) -> Instant {
        match self.interval_now {
            None => self.clock.window.min(Instant::now() + self.interval),
            Some(now) => self.clock.window + self.interval.mul_f64((now + 1) as f64),
        }
    }

    /// Ends an interval, and returns its number.
    fn advance(&mut self) -> Option<u64> {
        let ended = self.interval_now;
        self.interval_now = match ended {
            None if Instant::now() < self.clock.window => None,
            None => Some(0),
            Some(now) => Some(now + 1),
        };
        ended
    }
}

/// What the clients of a thread share. A field is not shared with other threads unless its doc says so.
#[derive(Debug)]
struct Thread {
    clock: Clock,
    /// Shared by all threads.
    stop: Arc<AtomicBool>,
    /// Shared by all threads; touched only if `total` is given.
    sent: Arc<AtomicU64>,
    total: Option<u64>,
    timeout: Duration,
    /// Held by the client that waits for the next request to be due; the other idle clients queue for it.
    open: Option<Mutex<OpenLoop>>,
    requests: RefCell<Requests>,
    tally: RefCell<Tally>,
    /// Requests without an answer.
    under_way: Cell<u64>,
    last_answer: Cell<Option<Instant>>,
}

#[derive(Debug)]
struct OpenLoop {
    schedule: Schedule,
    alarm: Alarm,
}

impl OpenLoop {
    fn new(plan: &Plan, rate: f64) -> Result<OpenLoop, BenchError> {
        let schedule = if plan.load.poisson {
            // The seed of the keys must not be used, since arrivals must not depend on them.
            Schedule::poisson(rate, thread_seed(!plan.load.seed, plan.thread))
        } else {
            Schedule::fixed(rate, plan.thread as f64 / plan.threads as f64)
        };
        let alarm = Alarm::new().map_err(|error| BenchError::Thread(format!("no timer: {error}")))?;
        Ok(OpenLoop { schedule, alarm })
    }
}

/// How a request failed: code and message.
type Failure = (String, String);

async fn client(thread: Rc<Thread>, connection: Rc<Connection>) {
    let mut failures_in_a_row = 0;
    while let Some(due) = thread.next_due().await {
        let request = thread.requests.borrow_mut().next();
        let kind = match request {
            Request::Put(_) => Kind::Put,
            Request::Get(_) => Kind::Get,
        };
        thread.under_way.set(thread.under_way.get() + 1);
        let outcome = thread.send(&connection, request, due).await;
        thread.under_way.set(thread.under_way.get() - 1);
        let failed = outcome.is_err();
        thread.count(kind, due, outcome, connection.address());
        failures_in_a_row = if failed { failures_in_a_row + 1 } else { 0 };
        if failed && thread.open.is_none() {
            sleep(BACKOFF_MIN * 2_u32.pow(failures_in_a_row.min(BACKOFF_DOUBLINGS_MAX))).await;
        }
    }
}

impl Thread {
    /// Waits until the next request is due. Returns `None` if there is none any more.
    async fn next_due(&self) -> Option<Instant> {
        let due = match &self.open {
            None => Instant::now(),
            Some(open) => {
                let mut open = open.lock().await;
                if self.is_over() {
                    return None;
                }
                let due = self.clock.start + open.schedule.next_due();
                if self.clock.end.is_none_or(|end| due < end) {
                    // The alarm was set up, and is set to a positive time below the run's end, so nothing can fail.
                    open.alarm.wait_until(due).await.expect("a timer that was set up rings");
                }
                due
            }
        };
        if self.is_over() || self.clock.end.is_some_and(|end| due >= end) {
            return None;
        }
        match self.total {
            Some(total) if due >= self.clock.window => {
                (self.sent.fetch_add(1, Ordering::Relaxed) < total).then_some(due)
            }
            _ => Some(due),
        }
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
            || self.total.is_some_and(|total| self.sent.load(Ordering::Relaxed) >= total)
    }

    /// Sends a request and waits for the answer. Returns whether a key was found.
    async fn send(
        &self,
        connection: &Rc<Connection>,
        request: Request,
        due: Instant,
    ) -> Result<bool, Failure> {
        let deadline = due + self.timeout;
        if self.open.is_some() {
            let now = Instant::now();
            if due >= self.clock.window {
                self.tally.borrow_mut().record_lateness(now.saturating_duration_since(due));
            }
            if now >= deadline {
                // A caller would have given up by now. This also bounds the backlog.
                return Err(failure(format!("not sent: no client was free within {:?}", self.timeout)));
            }
        }
        let answer = async {
            match request {
                Request::Put(put) => connection.put(put).await.map(|()| false),
                Request::Get(get) => connection.get(get).await,
            }
        };
        match timeout_at(deadline.into(), answer).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(status)) => Err(describe(&status)),
            Err(_) => Err(failure(format!("no answer within {:?}", self.timeout))),
        }
    }

    fn count(&self, kind: Kind, due: Instant, outcome: Result<bool, Failure>, endpoint: &str) {
        let now = Instant::now();
        self.last_answer.set(Some(now));
        let in_window = due >= self.clock.window;
        let mut tally = self.tally.borrow_mut();
        match outcome {
            Ok(found) => {
                tally.answered += 1;
                tally.answered_in_window +=
                    u64::from(now >= self.clock.window && self.clock.end.is_none_or(|end| now < end));
                if in_window {
                    tally.found += u64::from(found);
                    tally.record_latency(kind, now - due);
                }
            }
            Err((code, message)) => {
                let at_seconds = now.saturating_duration_since(self.clock.window).as_secs_f64()
                    - self.clock.window.saturating_duration_since(now).as_secs_f64();
                let error = FirstError { at_seconds, endpoint: endpoint.into(), code, message };
                tally.record_error(error, in_window);
            }
        }
    }

    /// In an open loop, requests that were due but never sent because the run was ended early.
    fn overdue(&self) -> u64 {
        let Some(Ok(mut open)) = self.open.as_ref().map(Mutex::try_lock) else { return 0 };
        if !self.stop.load(Ordering::Relaxed) {
            return 0;
        }
        let now = Instant::now().min(self.clock.end.unwrap_or_else(Instant::now));
        let mut overdue = 0;
        while self.clock.start + open.schedule.next_due() < now {
            overdue += 1;
        }
        overdue
    }
}

fn failure(message: String) -> Failure {
    ("DeadlineExceeded".into(), message)
}

fn describe(status: &Status) -> Failure {
    (format!("{:?}", status.code()), status.message().into())
}
