// Runs all scenes in one process, so that they share a pod and a browser.
import "./tests/login.mjs";
import "./tests/live.mjs";
import "./tests/jobs.mjs";
import "./tests/act.mjs";
import "./tests/stats.mjs";
import "./tests/failures.mjs";
import "./tests/kinds.mjs";
import "./tests/search.mjs";
import "./tests/lanes.mjs";
import "./tests/schedules.mjs";
import "./tests/audit.mjs";
import "./tests/settings.mjs";
import "./tests/read.mjs";
import "./tests/hostile.mjs";
import "./tests/keyboard.mjs";
import "./tests/pages.mjs";
import "./tests/away.mjs";
