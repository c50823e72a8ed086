create table orders (no int primary key);
