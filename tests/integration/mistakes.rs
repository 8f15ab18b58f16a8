//! Mistakes of newcomers: each is named, with what was expected, the next step, and the exit code of the table in README.md.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::support::{Cluster, HOOK, Run};

/// A command line with a mistake, its exit code, a part of the message, and a part of the next step.
struct Mistake(&'static str, i32, &'static str, &'static str);

const USAGE: &str = "For more information, try `tracer ";
const STARTING: &str = "(hint: start one with `tracer start --head`";
const IDS: &str = "(hint: `tracer list tasks` shows the ids)";
const TRACES: &str = "(hint: `tracer trace list` shows the ids)";
const NUMBER: &str = "expected a whole number such as `4`, found ";
const DURATION: &str = "expected a duration such as `500ms`, `10s` or `2m`, found ";
const SIZE: &str = "expected a size such as `500MiB` or `2GiB`, found ";

/// None of them needs a head. An argument with a space is written with `~`.
const WITHOUT_HEAD: &[Mistake] = &[
    // Words that are no commands here.
    Mistake("frobnicate", 2, "unrecognized subcommand 'frobnicate'", "Usage: tracer <COMMAND>"),
    Mistake("sumbit task", 2, "unrecognized subcommand 'sumbit'", "similar subcommand exists: 'submit'"),
    Mistake("run m:f", 2, "unrecognized subcommand 'run'", "`tracer submit task MODULE:FUNCTION` runs a function"),
    Mistake("exec ls", 2, "unrecognized subcommand 'exec'", "`tracer submit command -- PROGRAM` a program"),
    Mistake(
        "wordcount:count 1",
        2,
        "unrecognized subcommand 'wordcount:count'",
        "`tracer submit task wordcount:count 1`",
    ),
    Mistake("submit wordcount:count 1", 2, "unrecognized subcommand", "`tracer submit task wordcount:count 1`"),
    Mistake("submit python3 a.py", 2, "unrecognized subcommand", "`tracer submit command -- python3 a.py`"),
    Mistake("submit job", 2, "unrecognized subcommand 'job'", "`tracer submit task MODULE:FUNCTION`"),
    Mistake("submit script", 2, "unrecognized subcommand 'script'", "`tracer submit command -- PROGRAM`"),
    Mistake("task demo:f", 2, "unrecognized subcommand 'task'", "`tracer submit task demo:f`"),
    Mistake("ps", 2, "unrecognized subcommand 'ps'", "`tracer list tasks`"),
    Mistake("jobs", 2, "unrecognized subcommand 'jobs'", "`tracer list tasks`"),
    Mistake("tasks", 2, "unrecognized subcommand 'tasks'", "`tracer list tasks`"),
    Mistake("workers", 2, "unrecognized subcommand 'workers'", "`tracer list workers`"),
    Mistake("kill 1", 2, "unrecognized subcommand 'kill'", "`tracer cancel ID`"),
    Mistake("reload", 2, "unrecognized subcommand 'reload'", "`tracer restart` has a new version"),
    Mistake("up", 2, "unrecognized subcommand 'up'", "`tracer start --head`"),
    Mistake("down", 2, "unrecognized subcommand 'down'", "`tracer stop`"),
    Mistake("dashboard", 2, "unrecognized subcommand 'dashboard'", "--http 127.0.0.1:8265"),
    Mistake("traces", 2, "unrecognized subcommand 'traces'", "`tracer trace list`"),
    Mistake("list traces", 2, "unrecognized subcommand 'traces'", "`tracer trace list`"),
    Mistake("list task", 2, "unrecognized subcommand 'task'", "`tracer list tasks`"),
    Mistake("modules list", 2, "unrecognized subcommand 'list'", "`tracer list modules`"),
    Mistake("hooks list", 2, "unrecognized subcommand 'list'", "`tracer list hooks`"),
    Mistake("hook check x:y", 2, "unrecognized subcommand 'hook'", "`tracer hooks check MODULE:ATTRIBUTE`"),
    Mistake("trace ls", 2, "unrecognized subcommand 'ls'", "`tracer trace list`"),
    Mistake("show 1", 2, "unrecognized subcommand 'show'", "`tracer get ID`"),
    // Too little.
    Mistake("get", 2, "required arguments were not provided:\n  <ID>", "Usage: tracer get [OPTIONS] <ID>\n"),
    Mistake("explain", 2, "required arguments were not provided", "Usage: tracer explain [OPTIONS] <ID>\n"),
    Mistake("cancel", 2, "required arguments were not provided", "Usage: tracer cancel [OPTIONS] <ID"),
    Mistake(
        "modules show",
        2,
        "required arguments were not provided",
        "Usage: tracer modules show [OPTIONS] <MODULE>\n",
    ),
    Mistake(
        "hooks check",
        2,
        "required arguments were not provided",
        "Usage: tracer hooks check [OPTIONS] <MODULE:ATTRIBUTE>\n",
    ),
    Mistake("submit command", 2, "<PROGRAM>...", "Usage: tracer submit command [OPTIONS] <PROGRAM>...\n"),
    Mistake("submit actor", 2, "<MODULE:TYPE>", "Usage: tracer submit actor [OPTIONS] <MODULE:TYPE> [ARG]...\n"),
    Mistake("submit call", 2, "<ACTOR>\n  <METHOD>", "Usage: tracer submit call [OPTIONS] <ACTOR> <METHOD> [ARG]...\n"),
    Mistake("submit call hits", 2, "<METHOD>", "Usage: tracer submit call [OPTIONS] <ACTOR> <METHOD> [ARG]...\n"),
    Mistake("trace export", 2, "--format <FORMAT>", "Usage: tracer trace export [OPTIONS] --format <FORMAT>"),
    Mistake("start", 2, "needs --head to say so", "(hint: `tracer start --head`"),
    Mistake("submit task --map", 2, "`--map <FILE>` needs a value", USAGE),
    Mistake("submit task --map-text", 2, "--map <FILE>", USAGE),
    // Too much.
    Mistake("cancel 1 --all", 2, "cannot be used with", USAGE),
    Mistake("submit task demo:f --no-wait --map x", 2, "cannot be used with", USAGE),
    Mistake("submit task demo:f --at-most-once --retries 2", 2, "cannot be used with", USAGE),
    Mistake("prune", 2, "--older-than <DURATION>|--max-size <SIZE>|--max-tasks <N>", USAGE),
    Mistake("status now", 2, "unexpected argument 'now' found", "Usage: tracer status [OPTIONS]\n"),
    // Ids.
    Mistake("get -1", 2, "expected an id, which is a whole number such as `7`, found `-1`", IDS),
    Mistake("get 1.5", 2, "expected an id, which is a whole number such as `7`, found `1.5`", IDS),
    Mistake("get 99999999999999999999999", 2, "which is out of range", IDS),
    Mistake("explain 1.5", 2, "expected an id, which is a whole number such as `7`, found `1.5`", IDS),
    Mistake("cancel 1.5", 2, "expected an id, which is a whole number such as `7`, found `1.5`", IDS),
    Mistake("trace show zzz", 2, "expected a trace id (up to 32 hex digits), or `last`, found `zzz`", TRACES),
    Mistake(
        "trace show lats",
        2,
        "expected a trace id (up to 32 hex digits), or `last`, found `lats`",
        "did you mean `last`?",
    ),
    Mistake("trace export zzz --format otlp", 2, "expected a trace id (up to 32 hex digits)", TRACES),
    Mistake("trace show abc", 1, "there are no traces in ", "(hint: `tracer status` says whether the head traces"),
    Mistake("trace show last", 1, "there are no traces in ", "--spans-dir names another folder)"),
    Mistake("trace list --spans-dir /nope", 1, "there is no spans folder `/nope`", "nothing has been traced yet, or"),
    // Numbers and other values.
    Mistake(
        "start --head --num-workers lots",
        2,
        "wrong value for `--num-workers <N>`: expected a whole number such as `4`, found `lots`",
        USAGE,
    ),
    Mistake("start --head --num-workers -1", 2, NUMBER, USAGE),
    Mistake("start --head --num-workers=1.5", 2, NUMBER, USAGE),
    Mistake(
        "start --head --num-workers=99999999999",
        2,
        "expected a whole number from 0 to 4294967295, found `99999999999`",
        USAGE,
    ),
    Mistake("start --head --num-workers 0", 2, "`--num-workers`: expected a number from 1 to 1024, found 0", ""),
    Mistake("start --head --max-processes x", 2, NUMBER, USAGE),
    Mistake("start --head --queue-memory lots", 2, SIZE, USAGE),
    Mistake("start --head --queue-memory 5", 2, SIZE, USAGE),
    Mistake("start --head --worker-memory 1KiB", 2, "`--worker-memory`: expected at least", ""),
    Mistake("start --head --hook-timeout soon", 2, DURATION, USAGE),
    Mistake("start --head --hook-timeout 0", 2, "expected a duration above zero, found 0", ""),
    Mistake("start --head --block=maybe", 2, "expected `true` or `false`, found `maybe`", USAGE),
    Mistake("start --head --tracing-sampling-ratio 2", 2, "expected a number from 0 to 1, found `2`", USAGE),
    Mistake("start --head --tracing-sampling-ratio half", 2, "expected a number from 0 to 1, found `half`", USAGE),
    Mistake(
        "start --head --tracing-propagators b3",
        2,
        "expected `tracecontext`, `baggage`, both or `none`, found `b3`",
        USAGE,
    ),
    Mistake("start --head --resources gpu", 2, "expected NAME=AMOUNT, found `gpu`", ""),
    Mistake("start --head --http 0.0.0.0:8265", 2, "expected an address of this machine alone", "ssh -N -L"),
    Mistake("start --head --http 8265", 2, "expected an address such as `127.0.0.1:8265`", USAGE),
    Mistake("start --head --config /nope.toml", 2, "cannot read the configuration file `/nope.toml`", ""),
    Mistake("list tasks --limit many", 2, NUMBER, USAGE),
    Mistake("trace stats --limit -1", 2, NUMBER, USAGE),
    Mistake("trace list --min-duration long", 2, DURATION, USAGE),
    Mistake("stop --grace-period x", 2, DURATION, USAGE),
    Mistake("status --format yaml", 2, "expected `text` or `json`, found `yaml`", USAGE),
    Mistake("status --format jsn", 2, "expected `text` or `json`, found `jsn`", "did you mean `json`?"),
    Mistake("trace export --format xml", 2, "expected `otlp`, `chrome`, `speedscope` or `folded`, found `xml`", USAGE),
    Mistake("submit task demo:f --retries x", 2, NUMBER, USAGE),
    Mistake("submit task demo:f --retries -1", 2, "expected a whole number from 0 to 4294967295, found `-1`", USAGE),
    Mistake("submit task demo:f --timeout soon", 2, DURATION, USAGE),
    Mistake("submit task demo:f --num-cpus x", 2, NUMBER, USAGE),
    Mistake("submit task demo:f --resource gpu", 2, "expected NAME=AMOUNT, found `gpu`", USAGE),
    Mistake("submit task demo:f --memory big", 2, SIZE, USAGE),
    Mistake(
        "submit task demo:f --retry-on error",
        2,
        "`--retries` says how often, and is 0",
        "(hint: add `--retries 3`)",
    ),
    Mistake("submit task demo:f --map x --halt later", 2, "expected `never`, `soon`, `now`", USAGE),
    Mistake("submit command --env LEVEL -- true", 2, "`--env` got `LEVEL`", "(hint: --env NAME=VALUE sets one)"),
    Mistake("hooks check x:y --as hook", 2, "expected `startup-hook` or `exporter`, found `hook`", USAGE),
    // Flags of other tools and of other commands.
    Mistake("status --json", 2, "unexpected argument '--json' found", "(hint: `--format json` writes JSON)"),
    Mistake("start --head --workers 2", 2, "unexpected argument '--workers' found", "`--num-workers N`"),
    Mistake("start --head --num-cpus 2", 2, "unexpected argument '--num-cpus' found", "`--num-workers N`"),
    Mistake(
        "start --head --hook x:y",
        2,
        "unexpected argument '--hook' found",
        "`--tracing-startup-hook=MODULE:ATTRIBUTE`",
    ),
    Mistake("start --head --port 8265", 2, "unexpected argument '--port' found", "`--http 127.0.0.1:8265`"),
    Mistake("start --head --foreground", 2, "unexpected argument '--foreground' found", "`--block`"),
    Mistake("start --head --num-worker 2", 2, "unexpected argument '--num-worker' found", "'--num-workers'"),
    Mistake("submit task demo:f --async", 2, "unexpected argument '--async' found", "`--no-wait`"),
    Mistake("submit task demo:f --max-retries 2", 2, "unexpected argument '--max-retries' found", "`--retries N`"),
    Mistake(
        "submit task demo:f --module-path x",
        2,
        "unexpected argument '--module-path' found",
        "`tracer start --module-path`",
    ),
    Mistake(
        "submit command --workdir / -- true",
        2,
        "`--workdir` is no flag of `tracer submit command`",
        "`--cwd DIR`",
    ),
    Mistake("cancel 1 --force", 2, "unexpected argument '--force' found", "`--grace 0s`"),
    // Names.
    Mistake(
        "submit task wordcount",
        2,
        "a task is named `module:function`, but got `wordcount`",
        "(hint: for example `demo:my_function`)",
    ),
    Mistake(
        "submit task pix.big",
        2,
        "a task is named `module:function`, but got `pix.big`",
        "(hint: did you mean `pix:big`?)",
    ),
    Mistake("submit task ./libpix.so", 2, "a task is named `module:function`", "(hint: for example"),
    Mistake("submit task :f", 2, "a task is named `module:function`", "(hint: for example"),
    Mistake(
        "submit actor counter",
        2,
        "an actor is named `module:Type`, but got `counter`",
        "(hint: for example `counter:Counter`)",
    ),
    Mistake("submit task demo:my_function hello", 2, "argument 1 is not JSON: `hello`", "'\"hello\"'"),
    Mistake("submit task demo:my_function 'a'", 2, "argument 1 is not JSON: `'a'`", "quotes inside quotes"),
    Mistake("modules show wordcont", 1, "module `wordcont` was not found", "Did you mean `wordcount`?"),
    Mistake("modules show /nope.so", 1, "module `/nope.so` was not found: there is no such file", ""),
    // Hooks.
    Mistake("start --head --tracing-startup-hook=", 4, "but got ``", "is a variable of the shell not set?"),
    Mistake("start --head --tracing-exporter=", 4, "but got ``", "is a variable of the shell not set?"),
    Mistake(
        "start --head --tracing-startup-hook=my_tracing",
        4,
        "is named `module:attribute`, but got `my_tracing`",
        "(hint: for example",
    ),
    Mistake(
        "start --head --tracing-startup-hook=nope:setup",
        4,
        "module `nope` was not found",
        "(hint: name its folder in TRACER_MODULE_PATH",
    ),
    Mistake(
        "start --head --tracing-startup-hook=local_tmp_tracin:setup_tracing",
        4,
        "was not found",
        "Did you mean `local_tmp_tracing`?",
    ),
    Mistake(
        "start --head --tracing-startup-hook=local_tmp_tracing:setup",
        4,
        "has no hook `setup`; it has `setup_tracing`",
        "",
    ),
    Mistake(
        "start --head --tracing-startup-hook=ray.util.tracing.setup_local_tmp_tracing:setup_tracing",
        4,
        "was not found",
        "(hint: Ray's hook of that name is `local_tmp_tracing:setup_tracing` here)",
    ),
    Mistake(
        "start --head --tracing-exporter=local_tmp_tracing:setup_tracing",
        4,
        "is a startup hook",
        "(hint: name it with --tracing-startup-hook)",
    ),
    Mistake("hooks check x", 4, "is named `module:attribute`, but got `x`", "(hint: for example"),
    // Without a head.
    Mistake("get cache", 3, "no head is running in ", STARTING),
    Mistake("get 1", 3, "no head is running in ", STARTING),
    Mistake("list tasks", 3, "no head is running in ", STARTING),
    Mistake("status", 3, "no head is running in ", STARTING),
    Mistake("stop", 3, "no head is running in ", STARTING),
    Mistake("submit task", 3, "no head is running in ", STARTING),
    Mistake("submit call hits get", 3, "no head is running in ", STARTING),
    Mistake("trace open", 3, "no head is running in ", STARTING),
];

/// Mistakes of people who know another tool, or take a program for a function. None of them needs a head either.
const OF_OTHER_TOOLS: &[Mistake] = &[
    Mistake(
        "hooks check ./setup.py:setup",
        4,
        "cannot be loaded as a shared library",
        "(hint: a module is a library of functions in Rust or C; `tracer new` makes one",
    ),
    // As users of Ray type it.
    Mistake(
        "job submit -- python3 train.py",
        2,
        "unrecognized subcommand 'job'",
        "`tracer submit command -- python3 train.py`",
    ),
    Mistake(
        "job submit --working-dir . -- python3 train.py",
        2,
        "unrecognized subcommand 'job'",
        "`tracer submit command -- python3 train.py`",
    ),
    Mistake("job logs raysubmit_1", 2, "unrecognized subcommand 'job'", "`tracer logs ID`"),
    Mistake("job stop raysubmit_1", 2, "unrecognized subcommand 'job'", "`tracer cancel ID`"),
    Mistake("job status raysubmit_1", 2, "unrecognized subcommand 'job'", "`tracer get ID`"),
    Mistake("job list", 2, "unrecognized subcommand 'job'", "`tracer list tasks`"),
    Mistake("summary tasks", 2, "unrecognized subcommand 'summary'", "`tracer list tasks`"),
    Mistake("memory", 2, "unrecognized subcommand 'memory'", "`tracer status`"),
    Mistake("timeline", 2, "unrecognized subcommand 'timeline'", "`tracer trace export last --format chrome`"),
    Mistake("stack", 2, "unrecognized subcommand 'stack'", "`tracer top`"),
    Mistake("attach cluster.yaml", 2, "unrecognized subcommand 'attach'", "`tracer logs ID`"),
    Mistake("healthcheck", 2, "unrecognized subcommand 'healthcheck'", "`tracer status`"),
    Mistake("list jobs", 2, "unrecognized subcommand 'jobs'", "`tracer list tasks`"),
    Mistake("list objects", 2, "unrecognized subcommand 'objects'", "tracer has no objects"),
    Mistake("list placement-groups", 2, "unrecognized subcommand 'placement-groups'", "tracer has no placement-groups"),
    Mistake("list logs", 2, "unrecognized subcommand 'logs'", "`tracer logs ID`"),
    Mistake(
        "start --head --dashboard-host 0.0.0.0",
        2,
        "unexpected argument '--dashboard-host' found",
        "`--http 127.0.0.1:8265`",
    ),
    Mistake("start --head --include-dashboard", 2, "unexpected argument '--include-dashboard' found", "`tracer view`"),
    Mistake(
        "start --head --object-store-memory 1000",
        2,
        "unexpected argument '--object-store-memory' found",
        "`--queue-memory SIZE`",
    ),
    Mistake("start --head --redis-password x", 2, "unexpected argument '--redis-password' found", "needs no password"),
    Mistake("start --head --num-gpus 1", 2, "unexpected argument '--num-gpus' found", "`--resources gpu=2`"),
    Mistake("stop --all", 2, "unexpected argument '--all' found", "nothing is asked before"),
    Mistake("submit task demo:f --num_cpus 2", 2, "unexpected argument '--num_cpus' found", "`--num-cpus N`"),
    Mistake("submit task demo:f --num-gpus 1", 2, "unexpected argument '--num-gpus' found", "`--resource gpu=1`"),
    Mistake(
        "submit task demo:f --runtime-env {}",
        2,
        "unexpected argument '--runtime-env' found",
        "`tracer submit command --env NAME=VALUE --cwd DIR`",
    ),
    Mistake("submit task demo:f --namespace a", 2, "unexpected argument '--namespace' found", "`--temp-dir DIR`"),
    Mistake(
        "submit command --entrypoint-num-cpus 2 -- true",
        2,
        "`--entrypoint-num-cpus` is no flag of `tracer submit command`",
        "`--num-cpus N`",
    ),
    Mistake(
        "submit command --submission-id a -- true",
        2,
        "`--submission-id` is no flag of `tracer submit command`",
        "`--idempotency-key KEY`",
    ),
    Mistake(
        "submit command --runtime-env-json {} -- true",
        2,
        "`--runtime-env-json` is no flag of `tracer submit command`",
        "`tracer submit command --env NAME=VALUE --cwd DIR`",
    ),
    Mistake("serve start", 2, "unrecognized subcommand 'start'", "`tracer serve run MODULE:NAME`"),
    Mistake("serve shop:hello", 2, "unrecognized subcommand 'shop:hello'", "`tracer serve run shop:hello`"),
    Mistake(
        "serve run shop:hello --route-prefix /a",
        2,
        "unexpected argument '--route-prefix' found",
        "`route_prefix` stands in a service file",
    ),
    Mistake(
        "serve run shop:hello --non-blocking",
        2,
        "unexpected argument '--non-blocking' found",
        "`tracer serve deploy FILE`",
    ),
    // As users of Docker type it.
    Mistake("images", 2, "unrecognized subcommand 'images'", "no images and no containers"),
    Mistake("inspect 1", 2, "unrecognized subcommand 'inspect'", "`tracer get ID`"),
    Mistake("info", 2, "unrecognized subcommand 'info'", "`tracer get ID`"),
    Mistake("stats", 2, "unrecognized subcommand 'stats'", "`tracer top`"),
    Mistake("events", 2, "unrecognized subcommand 'events'", "`tracer view`"),
    Mistake("pause 1", 2, "unrecognized subcommand 'pause'", "`tracer cancel ID`"),
    Mistake("update", 2, "unrecognized subcommand 'update'", "install the new tracer"),
    Mistake("build .", 2, "unrecognized subcommand 'build'", "`tracer new NAME`"),
    Mistake("rm 1", 2, "unrecognized subcommand 'rm'", "`tracer cancel ID`"),
    Mistake("logs 1 --timestamps", 2, "unexpected argument '--timestamps' found", "`--times`"),
    Mistake("list tasks --all", 2, "unexpected argument '--all' found", "`--limit N`"),
    Mistake(
        "list tasks --filter status=failed",
        2,
        "unexpected argument '--filter' found",
        "`tracer list tasks 'state:failed name:count'`",
    ),
    Mistake("prune --all", 2, "unexpected argument '--all' found", "`--older-than 0s`"),
    Mistake("prune --until 24h", 2, "unexpected argument '--until' found", "`--older-than 7d`"),
    Mistake("stop --time 5", 2, "unexpected argument '--time' found", "`--grace-period DURATION`"),
    Mistake("cancel 1 --signal KILL", 2, "unexpected argument '--signal' found", "`--grace DURATION`"),
    Mistake(
        "submit command --rm -- true",
        2,
        "`--rm` is no flag of `tracer submit command`",
        "nothing is left of a program",
    ),
    Mistake(
        "submit command --user root -- true",
        2,
        "`--user` is no flag of `tracer submit command`",
        "as the user of the head",
    ),
    Mistake(
        "submit command --volume /a:/b -- true",
        2,
        "`--volume` is no flag of `tracer submit command`",
        "without a container",
    ),
    Mistake(
        "submit command --restart always -- true",
        2,
        "`--restart` is no flag of `tracer submit command`",
        "`--retries N`",
    ),
    Mistake(
        "submit command --memory-limit 1 -- true",
        2,
        "`--memory-limit` is no flag of `tracer submit command`",
        "`--memory SIZE`",
    ),
    Mistake(
        "submit command --label a=b -- true",
        2,
        "`--label` is no flag of `tracer submit command`",
        "`--name NAME`",
    ),
    // As users of Kubernetes type it.
    Mistake("apply service.toml", 2, "unrecognized subcommand 'apply'", "`tracer serve deploy FILE`"),
    Mistake("describe 1", 2, "unrecognized subcommand 'describe'", "`tracer get ID`"),
    Mistake("rollout", 2, "unrecognized subcommand 'rollout'", "`tracer serve deploy FILE`"),
    Mistake("scale", 2, "unrecognized subcommand 'scale'", "`tracer start --num-workers N`"),
    Mistake("expose", 2, "unrecognized subcommand 'expose'", "`tracer serve deploy FILE`"),
    Mistake("delete 1", 2, "unrecognized subcommand 'delete'", "`tracer cancel ID`"),
    Mistake("nodes", 2, "unrecognized subcommand 'nodes'", "`tracer list nodes`"),
    Mistake("services", 2, "unrecognized subcommand 'services'", "`tracer serve status`"),
    Mistake("debug", 2, "unrecognized subcommand 'debug'", "`tracer top`"),
    Mistake("serve scale hello 3", 2, "unrecognized subcommand 'scale'", "`num_replicas` or `autoscaling`"),
    Mistake("serve undo", 2, "unrecognized subcommand 'undo'", "`tracer serve rollback`"),
    Mistake("serve restart", 2, "unrecognized subcommand 'restart'", "`tracer serve deploy FILE`"),
    Mistake("serve get", 2, "unrecognized subcommand 'get'", "`tracer list services`"),
    Mistake("serve deploy -f service.toml", 2, "unexpected argument '-f' found", "`tracer serve deploy service.toml`"),
    Mistake("serve status --namespace a", 2, "unexpected argument '--namespace' found", "`--service NAME`"),
    Mistake("logs 1 --previous", 2, "unexpected argument '--previous' found", "all attempts"),
    Mistake("wait 1 --for complete", 2, "unexpected argument '--for' found", "`--any`"),
    Mistake(
        "list tasks --selector a=b",
        2,
        "unexpected argument '--selector' found",
        "`tracer list tasks 'state:failed name:count'`",
    ),
    Mistake("list tasks --watch", 2, "unexpected argument '--watch' found", "`tracer top`"),
    Mistake("status --watch", 2, "unexpected argument '--watch' found", "`tracer top`"),
    Mistake(
        "submit command --backoff-limit 3 -- true",
        2,
        "`--backoff-limit` is no flag of `tracer submit command`",
        "`--retries N`",
    ),
    Mistake(
        "submit command --active-deadline-seconds 3 -- true",
        2,
        "`--active-deadline-seconds` is no flag of `tracer submit command`",
        "`--timeout DURATION`",
    ),
    Mistake("submit task demo:f --ttl 1h", 2, "unexpected argument '--ttl' found", "`--queue-timeout`"),
    // As users of HyperQueue and Slurm type it.
    Mistake("hq submit -- ./a.sh", 2, "unrecognized subcommand 'hq'", "`tracer submit command -- ./a.sh`"),
    Mistake("sbatch job.sh", 2, "unrecognized subcommand 'sbatch'", "`tracer submit command -- PROGRAM`"),
    Mistake("squeue", 2, "unrecognized subcommand 'squeue'", "`tracer list tasks`"),
    Mistake("scancel 1", 2, "unrecognized subcommand 'scancel'", "`tracer cancel ID`"),
    Mistake("server start", 2, "unrecognized subcommand 'server'", "`tracer start --head`"),
    Mistake("worker start", 2, "unrecognized subcommand 'worker'", "`tracer start --num-workers N`"),
    Mistake("alloc add slurm", 2, "unrecognized subcommand 'alloc'", "`tracer start --num-workers N`"),
    Mistake("job cat 1 stdout", 2, "unrecognized subcommand 'job'", "`tracer logs ID`"),
    Mistake("job info 1", 2, "unrecognized subcommand 'job'", "`tracer get ID`"),
    Mistake("job cancel 1", 2, "unrecognized subcommand 'job'", "`tracer cancel ID`"),
    Mistake("task list", 2, "unrecognized subcommand 'task'", "`tracer submit task list`"),
    Mistake("start --head --server-dir x", 2, "unexpected argument '--server-dir' found", "`--temp-dir DIR`"),
    Mistake("submit task demo:f --cpus 2", 2, "unexpected argument '--cpus' found", "`--num-cpus N`"),
    Mistake("submit task demo:f --mem 4G", 2, "unexpected argument '--mem' found", "`--memory SIZE`"),
    Mistake(
        "submit task demo:f --array 1-10",
        2,
        "unexpected argument '--array' found",
        "`tracer submit task MODULE:FUNCTION --map FILE`",
    ),
    Mistake(
        "submit task demo:f --each-line x",
        2,
        "unexpected argument '--each-line' found",
        "`tracer submit task MODULE:FUNCTION --map FILE`",
    ),
    Mistake("submit task demo:f --job-name a", 2, "unexpected argument '--job-name' found", "`--name NAME`"),
    Mistake(
        "submit task demo:f --dependency 1",
        2,
        "unexpected argument '--dependency' found",
        "`tracer wait ID && tracer submit",
    ),
    Mistake("submit task demo:f --max-fails 3", 2, "unexpected argument '--max-fails' found", "`--halt now,fail=3`"),
    Mistake("submit task demo:f --output a.txt", 2, "unexpected argument '--output' found", "`tracer logs ID`"),
    Mistake(
        "submit task demo:f --time-request 1h",
        2,
        "unexpected argument '--time-request' found",
        "`--timeout DURATION`",
    ),
    Mistake("submit task demo:f --nice 1", 2, "unexpected argument '--nice' found", "`--priority N`"),
    Mistake("submit command --cpus 2 -- true", 2, "`--cpus` is no flag of `tracer submit command`", "`--num-cpus N`"),
    Mistake(
        "submit command --gres gpu:1 -- true",
        2,
        "`--gres` is no flag of `tracer submit command`",
        "`--resource gpu=1`",
    ),
    Mistake(
        "submit command --stdout a.txt -- true",
        2,
        "`--stdout` is no flag of `tracer submit command`",
        "redirect with `>`",
    ),
    // Programs in the place of functions, and ages without a unit.
    Mistake(
        "submit task python3 train.py",
        2,
        "`python3`, which is a program",
        "`tracer submit command -- python3 train.py`",
    ),
    Mistake(
        "submit task tasks.py 5",
        2,
        "`tasks.py`, which is a program",
        "`tracer submit command -- python3 tasks.py 5`",
    ),
    Mistake("submit task ./run.sh", 2, "`./run.sh`, which is a program", "`tracer submit command -- sh ./run.sh`"),
    Mistake("submit task sh -- -c true", 2, "`sh`, which is a program", "`tracer submit command -- sh -c true`"),
    Mistake(
        "prune --older-than 7",
        2,
        "expected an age with its unit, such as `30m`, `12h` or `7d`, found `7` without one",
        "(hint: `7d` is in days, `7s` in seconds)",
    ),
    Mistake("prune --older-than 0", 2, "found `0` without one", "`0s` in seconds"),
    Mistake(
        "prune --older-than soon",
        2,
        "expected an age with its unit, such as `30m`, `12h` or `7d`, found `soon`",
        "",
    ),
    Mistake("prune --max-size 5", 2, "expected a size such as `500MiB` or `2GiB`, found `5`", ""),
];

/// With a head that has run no task.
const WITH_HEAD: &[Mistake] = &[
    Mistake("start --head", 5, "a head is already running in ", "(hint: use it, end it with `tracer stop`"),
    Mistake("get cache", 1, "there is no actor `cache`", "`tracer list actors`"),
    Mistake("explain x", 1, "there is no actor `x`", "`tracer list tasks`"),
    Mistake("cancel x", 1, "there is no actor `x`", "`tracer list actors`"),
    Mistake("wait x", 1, "there is no actor `x`", "`tracer list actors`"),
    Mistake("get 99", 1, "there is no task 99", "`tracer list tasks`"),
    Mistake("explain 99", 1, "there is no task 99", "`tracer list tasks`"),
    Mistake("cancel 99", 1, "there is no task 99", "`tracer list tasks`"),
    Mistake("cancel 98 99", 1, "there is no task 98 and no task 99", "`tracer list tasks`"),
    Mistake(
        "submit task demo:my_functoin",
        1,
        "has no task `my_functoin`; it has `my_function`",
        "Did you mean `my_function`?",
    ),
    Mistake("submit task demoo:my_function", 1, "module `demoo` was not found", "Did you mean `demo`?"),
    Mistake("submit task demo:my_function 1 2", 1, "`my_function` takes no arguments, but got 2", "`tracer trace show"),
    Mistake("submit task wordcount:count", 1, "argument 1 (`text`) of `count` is missing; it takes &str", ""),
    Mistake("submit task wordcount:count 1", 1, "argument 1 (`text`) of `count` takes &str, but got an integer", ""),
    Mistake(
        "submit task misbehaving_tasks:exits -1.5",
        1,
        "takes i32, a whole number from -2147483648 to 2147483647, but got a number with a decimal point",
        "",
    ),
    Mistake(
        "submit task misbehaving_tasks:makes_spans -1",
        1,
        "takes u32, a whole number from 0 to 4294967295, but got a negative integer",
        "",
    ),
    Mistake("submit task demo:my_function --resource gpu=1", 1, "gpu", "--resources"),
    Mistake(
        "submit task demo:my_function --resource tpu=1",
        1,
        "the resource `tpu`",
        "(hint: start the head with --resources",
    ),
    Mistake("submit task demo:my_function --num-cpus 99", 1, "asks for 99 cpus", "--num-workers 99"),
    Mistake("submit call hits get", 1, "hits", ""),
    Mistake("submit command -- no_such_program_here", 127, "no_such_program_here", ""),
    Mistake("submit command -- /", 126, "`/`", ""),
    Mistake("submit command -- sh -c exit~7", 7, "", ""),
    Mistake("submit command -- sh -c kill~-9~$$", 137, "SIGKILL", ""),
    Mistake("submit command --timeout 10ms --grace 0s -- sleep 60", 124, "10 ms", ""),
];

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(|word| word.replace('~', " ")).collect()
}

/// Returns a description of what is not as the table says.
fn check(run: &Run, Mistake(line, code, message, next): &Mistake) -> Option<String> {
    let text = run.stderr_text();
    let is_right = run.output.status.code() == Some(*code)
        && run.stdout_text().is_empty()
        && text.contains(message)
        && text.contains(next)
        && !text.contains("something else");
    (!is_right).then(|| format!("`{line}`: expected {code}, `{message}` and `{next}`\n{run:?}"))
}

fn assert_all_right(wrong: impl Iterator<Item = Option<String>>) {
    let wrong: Vec<_> = wrong.flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The same as an object, for commands that have a format.
#[track_caller]
fn check_json(run: Run, Mistake(line, code, message, next): &Mistake) {
    let run = run.status(*code).stderr("");
    let value: Value = run.json();
    let error = &value["error"];
    let text = |field: &str| error[field].as_str().unwrap_or_default().to_owned();
    assert_eq!(error["exit_code"].as_i64(), Some((*code).into()), "`{line}`: {value}");
    assert!(text("message").contains(message), "`{line}`: {value}");
    if let Some(hint) = next.strip_prefix("(hint: ") {
        assert!(text("hint").contains(hint.trim_end_matches(')')), "`{line}`: {value}");
    }
    let kind = match code {
        2 => "usage",
        3 => "no_head",
        4 => "hook_refused",
        5 => "head_running",
        _ => "failed",
    };
    assert_eq!(text("kind"), kind, "`{line}`: {value}");
}

#[test]
fn a_hundred_mistakes_are_named_with_the_next_step() {
    assert!(WITHOUT_HEAD.len() + WITH_HEAD.len() >= 100);
    let cluster = Cluster::builder().build();
    fs::create_dir(cluster.spans_dir()).expect("the folder is ours");
    assert_all_right(WITHOUT_HEAD.iter().map(|mistake| check(&cluster.tracer(&words(mistake.0)), mistake)));
    for mistake in WITHOUT_HEAD
        .iter()
        .filter(|mistake| ["get", "explain", "cancel", "stop"].iter().any(|verb| mistake.0.starts_with(verb)))
    {
        let mut arguments = words(mistake.0);
        arguments.extend(["--format".to_owned(), "json".to_owned()]);
        check_json(cluster.tracer(&arguments), mistake);
    }
}

#[test]
fn a_hundred_mistakes_of_users_of_other_tools_are_answered_with_what_is_meant() {
    assert!(OF_OTHER_TOOLS.len() >= 100, "{}", OF_OTHER_TOOLS.len());
    let cluster = Cluster::builder().build();
    fs::write(cluster.file("run.sh"), "").expect("the folder is ours");
    fs::write(cluster.file("setup.py"), "def setup(): ...\n").expect("the folder is ours");
    assert_all_right(OF_OTHER_TOOLS.iter().map(|mistake| check(&cluster.tracer(&words(mistake.0)), mistake)));
}

#[test]
fn mistakes_that_a_head_answers_are_named_with_the_next_step() {
    let cluster = Cluster::builder().hook(HOOK).start();
    assert_all_right(WITH_HEAD.iter().map(|mistake| check(&cluster.tracer(&words(mistake.0)), mistake)));
    for mistake in &WITH_HEAD[..3] {
        let mut arguments = words(mistake.0);
        arguments.extend(["--format".to_owned(), "json".to_owned()]);
        check_json(cluster.tracer(&arguments), mistake);
    }
}

#[test]
fn a_wrong_variable_is_told_by_its_name() {
    let cluster = Cluster::builder().build();
    for (variable, value, arguments, message) in [
        (
            "TRACER_NUM_WORKERS",
            "abc",
            "start --head",
            "wrong value for the environment variable `TRACER_NUM_WORKERS`: expected a whole number such as `4`, found `abc`\n(hint: `unset TRACER_NUM_WORKERS`, or `--num-workers`",
        ),
        ("TRACER_NUM_WORKERS", "0", "start --head", "`TRACER_NUM_WORKERS`: expected a number from 1 to 1024, found 0"),
        (
            "TRACER_HOOK_TIMEOUT",
            "soon",
            "hooks check x:y",
            "wrong value for the environment variable `TRACER_HOOK_TIMEOUT`: expected a duration",
        ),
        (
            "TRACER_GRACE_PERIOD",
            "soon",
            "stop",
            "wrong value for the environment variable `TRACER_GRACE_PERIOD`: expected a duration",
        ),
        (
            "TRACER_BLOCK",
            "maybe",
            "start --head",
            "wrong value for the environment variable `TRACER_BLOCK`: expected `true` or `false`, found `maybe`",
        ),
    ] {
        let mut command = cluster.command(&words(arguments));
        command.env(variable, value);
        cluster.run(command).status(2).stderr_contains(message);
    }
    // On the command line it is the flag that is wrong.
    let mut command = cluster.command(&["start", "--head", "--num-workers", "x"]);
    command.env("TRACER_NUM_WORKERS", "2");
    cluster.run(command).status(2).stderr_contains("wrong value for `--num-workers <N>`");
}

#[test]
fn a_folder_that_others_may_enter_is_refused_with_the_command_that_mends_it() {
    let cluster = Cluster::builder().build();
    let folder = cluster.file("open");
    fs::create_dir(&folder).expect("the folder is ours");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("the folder is ours");
    let name = folder.to_str().expect("a plain name");
    let refused = cluster.tracer(&["start", "--head", "--temp-dir", name]).status(2);
    refused.stderr_contains(
        "others may enter it (its mode is 0755, expected 0700)\n(hint: `chmod 700 <folder>/open`, or ",
    );
}

#[test]
fn a_module_path_that_is_not_there_is_warned_of() {
    let cluster = Cluster::builder().build();
    for arguments in [&["list", "modules"] as &[&str], &["modules", "show", "demo"], &["hooks", "check", HOOK]] {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--module-path", "/nope"]).collect();
        let run = cluster.tracer(&arguments).success();
        run.stderr_contains("warning: no modules are found in `/nope`: it does not exist (--module-path)\n");
    }
}

#[test]
fn a_module_path_of_a_file_that_is_not_there_is_warned_of_too() {
    let cluster = Cluster::builder().build();
    let file = cluster.file("tracer.toml");
    std::fs::write(&file, "module_path = ['/nope']\n").expect("the folder is ours");
    let mut start = cluster.start_command(&["--config"]);
    start.arg(&file).env_remove("TRACER_MODULE_PATH");
    let start = cluster.run(start).success();
    start.stderr_contains(
        "warning: no modules are found in `/nope`: it does not exist (`module_path` of the configuration file)\n",
    );
}

#[test]
fn a_library_that_is_named_by_its_path_is_named_once() {
    let cluster = Cluster::builder().build();
    let library = crate::support::module_folder().join("libwordcount.so");
    let hook = format!("{}:nope", library.display());
    let run = cluster.tracer(&["hooks", "check", &hook]).status(4);
    assert_eq!(run.stderr_text().matches("libwordcount.so").count(), 1, "{run:?}");
}

#[test]
fn a_traceparent_that_is_none_is_told_what_it_should_be() {
    let cluster = Cluster::traced();
    let mut command = cluster.command(&["submit", "task"]);
    command.env("TRACEPARENT", "garbage");
    let run = cluster.run(command).success().stdout("1\n");
    run.stderr_contains("warning: `TRACEPARENT` is ignored: ")
        .stderr_contains("(hint: it is `00-<32 hex digits>-<16 hex digits>-01`; without one, a new trace begins)");
}
