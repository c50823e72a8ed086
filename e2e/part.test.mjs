import "./tests/pages.mjs";
import "./tests/away.mjs";
