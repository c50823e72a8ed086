// The dashboard's own script. It refreshes the page and sends the requests of buttons and forms. The pages can be read without it.
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
