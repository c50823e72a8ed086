// The dashboard's main script. It refreshes the page and sends requests for buttons and forms. The pages are readable without it.
import "./unfold.js";
import "./press.js";
import "./forms.js";
import "./preview.js";
import "./many.js";
import "./undone.js";
import "./chart.js";
import "./stack.js";
import "./zone.js";
import "./json.js";
import "./zoom.js";
import "./keys.js";
import "./columns.js";
import { keepUp } from "./live.js";

document.documentElement.classList.add("js");
keepUp();
