module polymq.example/management

go 1.22

require github.com/michaelklishin/rabbit-hole/v2 v2.12.0
