//! One replica's process, from its start to its end.

use std::{
    io::{self, Write as _},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStderr, ChildStdin, Command},
    sync::{mpsc, watch},
    time::{sleep, timeout},
};

use super::{plan::ReplicaPlan, say};

/// How long a replica may take to stop, which is longer than it waits for its clients.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// The time between the end of a replica and its next start.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// A replica's process has ended by itself.
#[derive(Debug)]
pub struct Ended {
    pub name: String,
    pub how: String,
    /// Whether it will be started again.
    pub returns: bool,
}

/// Runs a replica until `stop` becomes true, or until it ends and is not to be started again.
pub async fn keep(
    plan: ReplicaPlan,
    restart: bool,
    mut stop: watch::Receiver<bool>,
    ended: mpsc::Sender<Ended>,
) {
    loop {
        let (how, returns) = match start(&plan) {
            Err(error) => (format!("{} cannot be started: {error}", plan.program.display()), false),
            Ok(mut child) => {
                // Waiting for a process would close its standard input.
                let lifeline = child.stdin.take();
                let said = tokio::spawn(pass_on(plan.name.clone(), child.stderr.take()));
                let status = tokio::select! {
                    status = child.wait() => Some(status),
                    () = asked_to_stop(&mut stop) => None,
                };
                let Some(status) = status else {
                    end(&plan.name, child, lifeline).await;
                    let _ = said.await;
                    return;
                };
                // The last lines of its output may still be in the pipe.
                let _ = said.await;
                describe(status, restart)
            }
        };
        // The receiver is gone only when all replicas are being stopped.
        let _ = ended.send(Ended { name: plan.name.clone(), how, returns }).await;
        if !returns {
            return;
        }
        tokio::select! {
            () = sleep(RESTART_DELAY) => {}
            () = asked_to_stop(&mut stop) => return,
        }
    }
}

async fn asked_to_stop(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which is a request to stop, too.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Starts the process, in a process group of its own: Ctrl-C reaches only this process, which then stops all
/// replicas in order.
///
/// The replica stops by itself when its standard input ends, which happens however this process ends.
fn start(plan: &ReplicaPlan) -> io::Result<Child> {
    let mut command = Command::new(&plan.program);
    command.args(&plan.args).stdin(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
    let child = command.spawn()?;
    say(format_args!("{:<6} runs as process {}", plan.name, child.id().unwrap_or_default()));
    Ok(child)
}

async fn end(name: &str, mut child: Child, lifeline: Option<ChildStdin>) {
    drop(lifeline);
    if timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
        say(format_args!("{name} does not stop; it is killed"));
        let _ = child.kill().await;
    }
}

/// How it ended, and whether starting it again makes sense.
fn describe(status: io::Result<ExitStatus>, restart: bool) -> (String, bool) {
    /// The exit code of `synod serve` for an invalid configuration.
    const USAGE: i32 = 2;
    match status {
        Ok(status) => (status.to_string(), restart && status.code() != Some(USAGE)),
        Err(error) => (format!("it cannot be waited for: {error}"), false),
    }
}

/// Prints a replica's output, each line after the replica's name.
async fn pass_on(name: String, said: Option<ChildStderr>) {
    let Some(said) = said else { return };
    let mut lines = BufReader::new(said).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let _ = writeln!(io::stderr(), "{name:<6} {line}");
    }
}
