import "./tests/login.mjs";
import "./tests/live.mjs";
import "./tests/jobs.mjs";
